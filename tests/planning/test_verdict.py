"""Only a compiler that finished and told its memory can say that a program fits."""

import pytest

from grpo_jax.planning.compiling import Compilation, total_of
from grpo_jax.planning.targets import GIB, target_of
from grpo_jax.planning.verdict import Verdict, judge, overall

V5E, H100 = target_of("v5e:4x4"), target_of("h100:8")
OUT_OF_MEMORY = (
    "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(19.29G) exceeds available HBM (15.75G)."
)


def compiled(*, exact: bool = False, total: float | None = None, **memory: float) -> Compilation:
    """A compilation that took so many GiB."""
    sizes = {name: 0 for name in ("argument", "output", "alias", "temp", "generated_code")}
    sizes |= {name: round(size * GIB) for name, size in memory.items()}
    return Compilation(
        "update",
        exact,
        1.0,
        memory=sizes,
        total=None if total is None else round(total * GIB),
        collectives=(),
    )


@pytest.mark.parametrize(
    "total, exact, resident, answer",
    [
        (10.0, False, 0, "fits"),
        (10.0, False, 3, "unknown"),  # 13 of 15.75 is above the quick level's 80 %
        (13.0, False, 0, "unknown"),
        (13.0, True, 0, "fits"),
        (13.0, True, 3, "does not fit"),  # beside 3 GiB of other state
        (16.0, False, 0, "does not fit"),
    ],
)
def test_what_the_tpu_compiler_counts_decides(total, exact, resident, answer):
    """The sum of arguments and temporaries, 20 GiB, would be wrong."""
    found = compiled(total=total, exact=exact, argument=5.3, temp=14.8, peak=9.0)
    verdict = judge(found, V5E, resident=resident * GIB)
    assert verdict.answer == answer
    assert verdict.headroom == pytest.approx((15.75 - total - resident) * GIB, abs=2)


def test_without_the_log_the_peak_gets_a_margin():
    assert judge(compiled(peak=11.0), V5E, resident=0).answer == "fits"
    assert judge(compiled(peak=14.5), V5E, resident=0).answer == "does not fit"  # with 1.4 GiB more


def test_a_gpu_has_what_jax_takes_of_it():
    """Its compiler accepts anything; 79.1 GiB times 0.75 is 59.3."""
    assert judge(compiled(argument=10, temp=40), H100, resident=0).answer == "fits"
    assert judge(compiled(argument=10, temp=50), H100, resident=0).answer == "does not fit"
    assert judge(compiled(argument=10, temp=40), H100, resident=10 * GIB).answer == "does not fit"


def test_out_of_memory_says_how_much():
    verdict = judge(Compilation("update", False, 1.0, error=OUT_OF_MEMORY), V5E, resident=0)
    assert verdict.answer == "does not fit"
    assert verdict.needed == pytest.approx(19.29 * GIB)
    assert "19.29 GiB for temporaries alone" in verdict.reason


@pytest.mark.parametrize(
    "compilation",
    [
        Compilation("update", False, 1.0, error="RESOURCE_EXHAUSTED: something never seen"),
        Compilation("update", False, 1.0, error=OUT_OF_MEMORY.replace("19.29G", "9.29G")),
        Compilation("update", False, 600.0, error="not done after 600 s", timed_out=True),
        Compilation("update", False, 600.0, error=OUT_OF_MEMORY, timed_out=True),
        Compilation("update", False, 1.0, error="the compiler's process ended with status -6: abort"),
        Compilation("update", False, 1.0),
        compiled(),  # a program of nothing
    ],
)
def test_anything_unexpected_is_unknown(compilation):
    for target in (V5E, H100):
        assert judge(compilation, target, resident=0).answer == "unknown"


def test_one_program_decides_for_all():
    fits, not_, unknown = (Verdict(answer, "") for answer in ("fits", "does not fit", "unknown"))
    assert overall([fits, fits]) == "fits"
    assert overall([fits, unknown]) == "unknown"
    assert overall([unknown, not_, fits]) == "does not fit"
    assert overall([]) == "unknown"


def test_the_last_total_of_a_log_is_the_programs():
    log = "Total hbm usage >= 272.04M:\n reserved 263.00M\nTotal hbm usage >= 19.90G:\n"
    assert total_of(log) == round(19.90 * GIB)
    assert total_of("nothing of it") is None
