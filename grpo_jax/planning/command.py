"""`grpo-jax plan`: its arguments, and what it prints."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from grpo_jax import experiment
from grpo_jax.config import Config
from grpo_jax.planning import report
from grpo_jax.planning.compiling import compile_program
from grpo_jax.planning.devices import check_installed
from grpo_jax.planning.plan import make_plan
from grpo_jax.planning.search import Setting, search
from grpo_jax.planning.targets import Target, target_of
from grpo_jax.training.shapes import NAMES

EXIT = {"fits": 0, "does not fit": 1, "unknown": 3}
"""Exit status by verdict; 2 is a mistake of the reader's."""

DESCRIPTION = """Compiles a run's programs for chips that are not here, and says whether they fit.

  grpo-jax plan --topology v5p:2x2x2 --config EXPERIMENT.py [--section.field VALUE ...]

Exit status: 0 fits, 1 does not fit, 3 unknown. Nothing is executed.
"""


def parser(make: type[ArgumentParser] = ArgumentParser) -> ArgumentParser:
    """The command's own arguments; the rest are fields of the config."""
    found = make(
        prog="grpo-jax plan",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    found.add_argument("--topology", required=True, help="v5p:2x2x2, v6e:4x4, …; cpu:8 to try without libtpu")
    found.add_argument("--config", required=True, metavar="EXPERIMENT.py", help="the experiment to plan")
    found.add_argument(
        "--exact",
        action="store_true",
        help="compile with the flags that training uses: minutes, and no margin is needed",
    )
    found.add_argument(
        "--search",
        action="store_true",
        help="try meshes, rematerialisation and micro-batches of the update, the most promising first",
    )
    found.add_argument("--compilations", type=int, default=8, help="most that --search compiles (default 8)")
    found.add_argument("--json", action="store_true", help="print JSON")
    found.add_argument("--programs", nargs="+", choices=NAMES, default=NAMES, help="which programs")
    found.add_argument("--time_limit", type=float, default=600.0, help="seconds per program (default 600)")
    return found


def run(arguments: Sequence[str], make: type[ArgumentParser] = ArgumentParser) -> int:
    """Plans, prints, and returns the exit status."""
    options, flags = parser(make).parse_known_args(list(arguments))
    for name in ("compilations", "time_limit"):
        value = getattr(options, name)
        if not value > 0:
            raise ValueError(f"--{name}: got {value}, expected a positive number")
    target = target_of(options.topology)
    check_installed(target)
    config = experiment.override(
        experiment.load(options.config), flags, f"grpo-jax plan --config {options.config}"
    )
    progress = Console(stderr=True)
    if options.search:
        return _search(config, target, options, progress)
    with progress.status("reading the config") as status:
        plan = make_plan(
            config,
            target,
            exact=options.exact,
            names=options.programs,
            time_limit=options.time_limit,
            starting=lambda name: status.update(f"compiling {name} for {target.name}"),
        )
    if options.json:
        print(report.as_json(plan))
    else:
        report.show(plan, Console(width=None, soft_wrap=True))
    return EXIT[plan.answer]


def _search(config: Config, target: Target, options: Namespace, console: Console) -> int:
    """Searches, prints a table with the best first, and returns the best one's exit status."""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("closed form", total=options.compilations)

        def advance(setting: Setting) -> None:
            bar.update(task, description=setting.flags)
            bar.advance(task)

        found = search(
            config,
            target,
            compilations=options.compilations,
            exact=options.exact,
            time_limit=options.time_limit,
            compile_with=compile_program,
            advance=advance,
        )
    if options.json:
        print(report.search_as_json(found))
    else:
        report.show_search(found, target, Console(soft_wrap=True))
    return EXIT[found[0][1].answer if found else "does not fit"]
