"""What a person sees: plain lines in a log file, a live bar on a terminal."""

import io

from rich.console import Console

from grpo_jax.training.progress import Progress, clock_text


class Clock:
    """Time that moves only when told to."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_log_file_gets_few_plain_lines_and_every_evaluation():
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, width=40)  # narrower than a line: nothing may be wrapped
    with Progress(total=100, description="policy", lines=4, console=console, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 60 if step == 1 else 2  # the first step compiles
            metrics = {"reward/mean": step / 100, "length/mean": 12.0, "grad/norm": 1.0}
            progress.update(step, metrics | ({"eval/accuracy": 0.5} if step == 10 else {}))
    lines = file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "policy 1/100",
        "policy 10/100",
        "policy 25/100",
        "policy 50/100",
        "policy 75/100",
        "policy 100/100",
    ]
    # The compiling step is out of the time left, at once: 90 steps of 2 s.
    assert lines[1].endswith("2 s/step  left 3:00")
    # The evaluation of step 10 stays in view.
    assert lines[3] == "policy 50/100  reward 0.500  held-out 50.0%  length 12.0  2 s/step  left 1:40"
    assert "\x1b" not in file.getvalue()


def test_a_missing_number_keeps_its_latest_value():
    file = io.StringIO()
    progress = Progress(total=2, description="policy", console=Console(file=file))
    progress.update(1, {"reward/mean": 0.25})
    progress.update(2, {"reward/mean": None})
    assert file.getvalue().splitlines()[1].startswith("policy 2/2  reward 0.250")


def test_a_terminal_gets_a_bar_with_the_numbers():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120)
    with Progress(total=10, description="policy", start=4, console=console) as progress:
        progress.update(5, {"reward/mean": 0.25})
        progress.note("held-out accuracy [not markup]")
    output = file.getvalue()
    assert "5/10" in output
    assert "reward 0.250" in output
    assert "held-out accuracy [not markup]" in output


def test_times_are_read_as_on_a_clock():
    assert [clock_text(s) for s in (0.4, 75, 4000)] == ["0:00", "1:15", "1:06:40"]
