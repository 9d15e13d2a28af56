"""What the rollout's two rules cost and give on the embedded model: python -m tests.benchmarks.rules [--n 256]

The judge scores the same prompts and seeds under each setting: without rules, with blocks started again where their
predictions do not settle, with denoising ended early where they agree. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from model.pipeline import Limits
from model.training import evaluate
from model.training.world import ATTRIBUTES

RESAMPLE = (0.6, 0.7, 0.75, 0.8)  # shares of the first change
SKIP = (0.04, 0.06, 0.08)  # mean absolute differences of latents


def settings(resample: Sequence[float], attempts: int, skip: Sequence[float]) -> Iterator[tuple[str, Limits]]:
    """A row's name and its limits."""
    yield "none", Limits()
    for share in resample:
        name = f"first block again above {share:g}, {attempts} times at most"
        yield name, Limits(resample_above=share, max_attempts=attempts, resample_blocks=1)
    yield from ((f"skip below {change:g}", Limits(skip_below=change)) for change in skip)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    evaluate.add_arguments(parser, n=256)
    parser.add_argument("--resample", type=float, nargs="*", default=RESAMPLE, help="shares of the first change")
    parser.add_argument("--attempts", type=int, default=2, help="how often a block may start again")
    parser.add_argument("--skip", type=float, nargs="*", default=SKIP, help="differences of latents")
    args = parser.parse_args()
    scenes, prompts = evaluate.draw_prompts(args.n, args.seed, args.wording)
    pipeline, means = evaluate.open_pipeline(args)
    print(
        f"{args.n} held-out prompts, {args.blocks} blocks, {args.steps} steps, {means['mode']}, {means['precision']}\n"
    )
    print(f"| rule | {' | '.join(ATTRIBUTES)} | all | steps per block | started again |", "|---" * 9 + "|", sep="\n")
    plain = None
    for name, limits in settings(args.resample, args.attempts, args.skip):
        reports = []
        videos = evaluate.make_videos(pipeline, prompts, args, limits, reports)
        result, work = evaluate.scores(args.model / "judge", scenes, videos), evaluate.work_done(reports)
        plain = plain or work["steps_per_block"]
        cells = [name, *(f"{value:g}" for value in (*result["scores"].values(), result["all"]))]
        cells.append(f"{work['steps_per_block']:.2f} ({work['steps_per_block'] / plain - 1:+.0%})")
        cells.append(f"{100 * work['resampled']:.1f} %")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
