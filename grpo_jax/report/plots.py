"""The plots of a run: which metrics are read together, and what a reader should conclude from them.

`PLOTS` is the whole list; `drawing` draws it, and a plot whose metrics a run lacks is left out.
"""

from dataclasses import dataclass

BLUE, RED, GREEN, GOLD, VIOLET, GREY = "#2b6a99", "#c2553f", "#4c8a63", "#c9973b", "#7b6796", "#7a828c"
OTHERS = (GREEN, GOLD, VIOLET, RED, GREY)
PHASES = {"rollout": BLUE, "reward": GREEN, "update": RED, "evaluate": GOLD, "checkpoint": VIOLET}


@dataclass(frozen=True)
class Line:
    """One metric in a plot; with a * in its name, all that match if there are several, labelled by the *."""

    metric: str
    label: str = ""
    color: str = BLUE


@dataclass(frozen=True)
class Plot:
    """Metrics that are read together. `kind` is how they are drawn: lines, band, stack, or by_k."""

    title: str
    conclusion: str
    unit: str
    lines: tuple[Line, ...] = ()
    kind: str = "lines"
    percent: bool = False
    reference: float | None = None
    stage: str = "policy"


PLOTS = {
    "Result": (
        Plot(
            title="Held-out accuracy",
            kind="band",
            unit="accuracy",
            percent=True,
            lines=(Line("eval/accuracy"),),
            conclusion="Share of right answers on problems never trained on, with its 95 % interval. This is "
            "the number to judge a run by. Intervals that do not overlap show a real change; "
            "where they do overlap, the paired comparison decides.",
        ),
        Plot(
            title="pass@k, before and after",
            kind="by_k",
            unit="problems solved",
            percent=True,
            lines=(Line("eval/pass@"),),
            conclusion="Chance that at least one of k attempts is right. If only the left end rises, the "
            "model now finds reliably what it found sometimes; if the right end rises too, it "
            "solves problems that were out of its reach.",
        ),
        Plot(
            title="Reward",
            unit="mean reward",
            lines=(Line("reward/mean", "weighted sum"), Line("rewards/*/mean")),
            conclusion="Mean reward of sampled completions on training problems. It should rise and level "
            "off. Reward that rises while held-out accuracy does not is memory, or a reward that "
            "can be gamed.",
        ),
        Plot(
            title="Groups",
            kind="stack",
            unit="share of groups",
            percent=True,
            lines=(
                Line("groups/all_right", "all right", GREEN),
                Line("groups/mixed_fraction", "mixed", BLUE),
                Line("groups/all_wrong", "all wrong", RED),
            ),
            conclusion="Only mixed groups have a gradient. When few are left, problems are too easy (mostly "
            "all right) or too hard (mostly all wrong) to learn more from.",
        ),
    ),
    "Length and balance": (
        Plot(
            title="Completion length by sign of the advantage",
            unit="tokens",
            lines=(
                Line("length/positive_mean", "advantage > 0", GREEN),
                Line("length/negative_mean", "advantage < 0", RED),
                Line("length/mean", "all", GREY),
            ),
            conclusion="How long rewarded and penalised completions are. A lasting gap is what couples "
            "length to the sign of the update; length that grows without reward is a policy that "
            "has learnt to ramble.",
        ),
        Plot(
            title="Coupling ratio",
            unit="log (positive / negative weight)",
            reference=0.0,
            lines=(Line("coupling/log_ratio"),),
            conclusion="Log of the total weight on rewarded over that on penalised tokens, within mixed "
            "groups. At 0 both sides push equally. Below 0 long wrong answers dominate the "
            "update, above 0 long right ones.",
        ),
        Plot(
            title="Length gap and spread",
            unit="relative to mean length",
            reference=0.0,
            lines=(Line("length/gap", "gap (L₋ − L₊) / L"), Line("length/cv", "std / mean in a group", GOLD)),
            conclusion="Near 0 every aggregation rule gives the same update; the wider the gap, the more the "
            "choice of rule matters.",
        ),
        Plot(
            title="Entropy",
            unit="nats per token",
            lines=(Line("entropy/mean"),),
            conclusion="How undecided the policy is. A slow fall is learning; a plunge to 0 early is "
            "collapse: groups become all alike and the gradient vanishes. A rise beyond the start "
            "is divergence.",
        ),
    ),
    "Health of the update": (
        Plot(
            title="Clip fractions",
            unit="share of tokens",
            percent=True,
            lines=(Line("clip/low_fraction", "low"), Line("clip/high_fraction", "high", RED)),
            conclusion="Tokens whose ratio left the clip range and lost their gradient. 0 is right for one "
            "update per rollout. Above about 20 % steps are too large: lower the learning rate or "
            "take fewer of them.",
        ),
        Plot(
            title="KL divergence",
            unit="nats per token",
            lines=(Line("kl/ref", "to the reference"), Line("kl/old", "to the policy before the step", GOLD)),
            conclusion="How far the policy is from the reference, and how far one step moves it. A jump of "
            "either comes before most collapses.",
        ),
        Plot(
            title="Gradient norm",
            unit="global norm",
            lines=(Line("grad/norm"),),
            conclusion="Norm before clipping. Spikes that recur, or a steady rise, call for a smaller "
            "learning rate; exactly 0 means no group was mixed.",
        ),
        Plot(
            title="Sampler against trainer",
            unit="nats per token",
            lines=(Line("sampler/log_prob_gap"),),
            conclusion="Difference between the log-probabilities of the sampler and of the trainer for the "
            "same tokens. Rounding is all it should be; above 0.01 the update optimises another "
            "policy than the one that sampled.",
        ),
        Plot(
            title="Warm start",
            unit="cross-entropy, nats per token",
            stage="warm_start",
            lines=(Line("warm_start/loss"),),
            conclusion="Loss on reference answers before the policy stage. It only has to get the model to "
            "where some samples are right.",
        ),
    ),
    "Cost": (
        Plot(
            title="Time per phase",
            kind="stack",
            unit="seconds per step",
            lines=tuple(Line(f"time/{phase}_seconds", phase, color) for phase, color in PHASES.items()),
            conclusion="Where a step's time goes. The first step compiles. The largest band is the one worth "
            "making faster.",
        ),
        Plot(
            title="Programs of the sampler",
            unit="compiled so far, since the run began or was resumed",
            lines=(Line("sampler/programs"),),
            conclusion="Sizes the sampler has met and compiled for. It rises in the first steps and then stays: "
            "there are a few sizes of prompts, slots and caches, whatever the lengths.",
        ),
        Plot(
            title="Throughput",
            unit="completion tokens per second",
            lines=(Line("throughput/completion_tokens_per_second"),),
            conclusion="Tokens sampled per second of a whole step. A slow decline usually means longer "
            "completions.",
        ),
    ),
}
