"""Reading collectives from HLO text: recorded lines, and programs compiled here whose collectives are known."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from grpo_jax.planning import hlo

RECORDED = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%all-reduce-scatter.3 (p: f32[64,16]) -> f32[8,16] {
  %p = f32[64,16]{1,0:T(8,128)} parameter(0)
  %all-reduce.9 = f32[64,16]{1,0:T(8,128)} all-reduce(%p), channel_id=5, replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %ds = f32[8,16]{1,0:T(8,128)} dynamic-slice(%all-reduce.9), dynamic_slice_sizes={8,16}
}

%inner_cond (q: (s32[], bf16[4,8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(3), metadata={op_name="jit(step)/while"}
  %q = (s32[]{:T(128)}, bf16[4,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%inner_body (q: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %q = (s32[]{:T(128)}, bf16[4,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %all-gather.1 = bf16[4,8]{1,0:T(8,128)(2,1)} all-gather(%slice), channel_id=1, \
replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}, dimensions={1}
  %rs = f32[8,16]{1,0:T(8,128)} fusion(%w), kind=kCustom, calls=%all-reduce-scatter.3
}

%outer_cond (r: (s32[], s32[])) -> pred[] {
  %r = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%r), index=0
  %n = s32[]{:T(128)} get-tuple-element(%r), index=1
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %n), direction=LT
}

%outer_body (r: (s32[], s32[])) -> (s32[], s32[]) {
  %r = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %w.1 = (s32[]{:T(128)}, bf16[4,8]{1,0:T(8,128)(2,1)}) while(%t), condition=%inner_cond, body=%inner_body
}

ENTRY %main (a: f32[4], b: f32[6]) -> f32[4] {
  %a = f32[4]{0:T(128)} parameter(0)
  %both = (f32[4]{0:T(128)}, /*index=1*/f32[6]{0:T(128)}) all-reduce(%a, %b), channel_id=2, \
replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %get = f32[4]{0:T(128)} get-tuple-element(%both), index=0, metadata={op_name="all-reduce"}
  %start = (f32[2]{0}, f32[16]{0}) all-gather-start(%a), replica_groups=[1,8]<=[8], dimensions={0}
  %done = f32[16]{0} all-gather-done(%start)
  ROOT %w.2 = (s32[], s32[]) while(%t), condition=%outer_cond, body=%outer_body
}
"""


def test_recorded_lines_by_hand():
    found = {(c.kind, c.depth): c for c in hlo.collectives(RECORDED)}
    assert set(found) == {("all-gather", 0), ("all-reduce", 0), ("all-gather", 2), ("reduce-scatter", 2)}
    reduced = found["all-reduce", 0]
    assert (reduced.count, reduced.bytes, reduced.at_least) == (1, 4 * (4 + 6), False)
    assert reduced.traffic == 2 * (1 / 2) * 40  # two devices: half there, half back
    assert found["all-gather", 0].bytes == 4 * 16  # the result, not the operand beside it
    gathered = found["all-gather", 2]
    assert (gathered.count, gathered.bytes) == (3, 3 * 2 * 4 * 8)
    assert gathered.traffic == gathered.bytes * 3 / 4  # axis_1 has four devices
    scattered = found["reduce-scatter", 2]
    assert (scattered.count, scattered.bytes) == (3, 3 * 4 * 64 * 16)
    assert gathered.at_least and scattered.at_least  # the outer loop's count is not in the text


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.collectives("nothing here")


@pytest.mark.parametrize("shape, size", [("f32[2,3]{1,0}", 24), ("(bf16[4], pred[])", 9), ("s4[10]", 5)])
def test_bytes_of_a_shape(shape, size):
    assert hlo.size_of(shape) == size


def test_a_compiled_program():
    """One sum in a loop of five in a loop of three, one outside: as written below."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def inner(carry, _):
        return jax.lax.psum(carry, "x") / 8, None

    def outer(carry, _):
        return jax.lax.scan(inner, carry, None, length=5)[0], None

    def shard(x):
        x = jax.lax.scan(outer, x, None, length=3)[0]
        return x + jax.lax.all_gather(x, "x", tiled=True).sum()

    spec = PartitionSpec("x")
    program = jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    text = program.lower(jnp.ones(80)).compile().as_text()
    found = {(c.kind, c.depth): c for c in hlo.collectives(text)}
    assert found["all-reduce", 2].count == 15
    assert found["all-reduce", 2].bytes == 15 * 10 * 4
    assert found["all-gather", 0].bytes == 80 * 4
    assert not any(c.at_least for c in found.values())
