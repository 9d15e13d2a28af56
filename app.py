"""The Space: page, API and the functions that use the GPU. Composes model and compile_cache for visitors.

Read from top to bottom: what is served, how one request becomes a video, what the page's buttons do, the page.
Everything that is not about Gradio, spaces or words for visitors lives in model/.
"""

from __future__ import annotations

import os

if os.environ.get("SPACES_ZERO_GPU"):
    import torch._dynamo  # noqa: F401  (before spaces: it keeps the torch.device that it finds, and spaces patches that)
import spaces  # isort: skip  (before everything else that imports torch: on ZeroGPU it has to patch it)

import html
import inspect
import logging
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from compile_cache.errors import shown
from model.faults import fault
from model.generator import MAX_STEPS
from model.pipeline import Block, GenerationError, Request, RequestError
from model.progress import tenths
from model.published.locate import Located, locate
from model.runner import Held
from model.service.aside import read_aside
from model.service.duration import Durations
from model.service.forms import frames_in, link_of, random_seed, read_request, settings_of, size_text
from model.service.kept import Kept
from model.service.platform import ENDED, plain_words, too_long
from model.service.recording import Progress, Recording, Served, SourceFailed, record
from model.service.remote import built, work
from model.service.serving import Serving
from model.service.status import without_folders
from model.service.video import read_settings

log = logging.getLogger("onegraph")
EMBEDDED = Path(__file__).parent / "model" / "tiny"
WANTED = os.environ.get("MODEL_ID", "").strip()  # a model's folder, Hub id or preset; see model/published/locate.py
MAX_BLOCKS = 60  # 45 s; a stream's chunks, 1 MB then, stay in memory until its visitor leaves
DEFAULT_BLOCKS = 7
EXAMPLES = (  # for a model that has none of its own
    "A red fox trots through fresh snow at dawn, its breath steaming in the cold light.",
    "Waves roll onto a black sand beach under heavy clouds, seen from a slowly rising drone.",
    "A potter's wet hands shape a clay bowl on a turning wheel, close up, warm light.",
    "A small sailing boat crosses a calm bay at sunset, gulls circling above the mast.",
)
ON_ZERO = spaces.config.Config.zero_gpu
BUILD_AT_START = 1500  # seconds of a GPU that the platform grants until the page is up
BUILD_LATER = 300  # of quota: the most that was ever said to be granted afterwards; each kind of account has its limit
TRIAL = 30  # seconds more for the first request with a binary from the Hub, which is tried out on the GPU then
KEEP_FILES = 3600  # seconds a finished video can be downloaded
PATIENCE = 60  # seconds that who asks for a cancelled video waits for the block that is being made

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
for name in ("httpx", "httpx2"):
    logging.getLogger(name).setLevel(logging.WARNING)


def opened(wanted: str) -> tuple[Serving, Located, str | None]:
    """The model that was asked for; where it cannot be used, for whatever reason, the embedded one, and why."""
    try:
        located = locate(wanted or EMBEDDED, progress=tenths("downloaded", log.info))
        return Serving(located.folder, lent=ON_ZERO, progress=tenths("read", log.info)), located, None
    except Exception as error:
        words = fault(error)
        if not wanted:
            sys.exit(f"The embedded model cannot be used: {words or repr(error)}")
        if words is None:  # a model of others can raise anything
            log.exception("MODEL_ID %s cannot be used", wanted)
            words = type(error).__name__
        else:
            log.warning("MODEL_ID %s cannot be used: %s", wanted, words)
    return *opened("")[:2], f"The model {shown(wanted, 200)} cannot be used: {without_folders(words).rstrip('.')}."


serving, located, problem = opened(WANTED)
rollout, world = serving.pipeline.config.rollout, serving.pipeline.world
SIZES = [(f"{width} × {height}", size_text(height, width)) for height, width in rollout.sizes]
durations = Durations(*rollout.sizes[0], rollout.steps)
stops: dict[str, threading.Event] = {}  # by session: one video at a time, ended by its own visitor only
kept = Kept(KEEP_FILES)  # by session, of programs


# ---------------------------------------------------------------------------------------------- one request


def seconds_of(request: Request, held: Held | None = None) -> int:
    """What `blocks_of` will need, asked by the platform with the same arguments."""
    return durations.estimate(request, serving.pipeline.runner.mode) + TRIAL * (held or serving.held).untried


def quota_factor() -> float:
    """What ZeroGPU charges for a second: a whole GPU counts twice, half a one by the factor of its model."""
    from spaces.zero import config, default_gpu_size

    return 2 if default_gpu_size() == "xlarge" else config.get_config()["duration_factor"]


def quota_of(seconds: int) -> int:
    """What is charged for that many."""
    return round(seconds * quota_factor())


@spaces.GPU(duration=seconds_of)
def blocks_of(request: Request, held: Held) -> Iterator[Block | Served | None]:
    """None when it is the request's turn, then all its blocks, then Served. On ZeroGPU this runs in a GPU worker, a
    fork of this process, which may be older than what is held now."""
    yield None
    yield from work(serving, request, held)


@spaces.GPU(duration=lambda seconds: seconds)
def built_on_gpu(seconds: float) -> dict[str, Any]:
    """Compiles the graph in a GPU worker, which is asked for so long; see `built`."""
    if ON_ZERO:
        mend_torch()
    return built(serving)


def mend_torch() -> None:
    """In a worker, spaces 0.51.3 leaves one function of torch.cuda under two names; torch.export refuses that."""
    import torch
    from spaces.zero.torch import patching

    torch.cuda._maybe_exchange_device = patching._cuda_maybe_exchange_device


def build_on_gpu() -> str | None:
    """Why that failed, None if it did not. Asks for a long task, and where the platform does not allow that for a
    shorter one; without a visitor's token, which the threads that call this do not have."""
    refused = []
    for seconds in (BUILD_AT_START, round(BUILD_LATER / quota_factor())):
        try:
            figures = built_on_gpu(seconds)
        except Exception as error:
            title, text = told(error)
            if not too_long(title):
                return "; ".join([*refused, f"the GPU task for it failed: {title}: {text}"])
            refused.append(f"a GPU task of {seconds} s for it is not allowed")
        else:
            log.info("built on a GPU: %s", figures)
            if figures["process"] != os.getpid():  # a worker, grown by the compiler, is sent away
                with suppress(ProcessLookupError):
                    os.kill(figures["process"], signal.SIGTERM)
            return figures.get("error")
    return "; ".join(refused)


def told(error: Exception) -> tuple[str, str]:
    """Title and text of an error that the platform raised."""
    return getattr(error, "title", type(error).__name__), str(getattr(error, "message", error))


def checked(prompt: Any, seed: Any, blocks: Any, size: Any, steps: Any) -> Request:
    """A request that can be served. Raises gr.Error in words for a visitor."""
    try:
        request = read_request(prompt, seed, blocks, size, steps, max_blocks=MAX_BLOCKS, default_size=rollout.sizes[0])
        return serving.pipeline.check(request)
    except RequestError as error:
        raise gr.Error(str(error), title="Please change this", print_exception=False) from None


class Waiting:
    """What spaces takes for Gradio's event. While a request waits in the platform's queue, it looks at every sign of
    life whether the event is alive; if not, it leaves the queue, or gives back at once what it was just lent."""

    def __init__(self, given_up: Callable[[], bool]) -> None:
        self._given_up = given_up

    @property
    def alive(self) -> bool:
        return not self._given_up()


waiting: ContextVar[Waiting | None] = ContextVar("waiting", default=None)
if ON_ZERO:
    from spaces.zero import client

    client.get_event = waiting.get  # spaces 0.51.3 would look for the event itself, which knows nothing of Stop


def lent(request: Request, stopped: Callable[[], bool]) -> Iterator[Block | Served]:
    """The request's parts, from which later estimates learn; none if it is stopped before its turn comes. On ZeroGPU,
    where all that can fail in this process is the platform, its errors are told in words for visitors."""
    mode, held, made, begun = serving.pipeline.runner.mode, serving.held, 0, False

    def given_up() -> bool:
        return not begun and stopped()

    source = blocks_of(request, held)
    if ON_ZERO:  # where it may have to wait for a GPU
        waiting.set(Waiting(given_up))
        source = read_aside(source, given_up)
    with closing(source):
        try:
            for part in source:
                if part is None:
                    begun = True
                    continue
                if isinstance(part, Block):
                    made += 1
                else:
                    if made and not part.problem and not held.untried:
                        durations.learn(request, part, made)
                    if part.found:
                        serving.move(part.found, build_on_gpu)
                    serving.opened(held, part, build_on_gpu)
                yield part
        except Exception as error:
            if not ON_ZERO:
                raise
            log.warning("ZeroGPU: %s: %s", *told(error))
            if given_up():
                return
            if (words := plain_words(*told(error))) == ENDED:
                durations.ran_out(mode)
                if held.untried and not made:  # it will not be tried again
                    died = Served("eager", reason="its trial run ended the GPU task", sought=held.key)
                    serving.opened(held, died, build_on_gpu)
            raise SourceFailed(words) from error


def recorded(
    request: Request, folder: Path, stopped: Callable[[], bool], **options: Any
) -> Iterator[Progress | Recording]:
    """The request's progress and recording; whatever fails inside reaches the visitor as one plain sentence."""
    try:
        source, told = lent(request, stopped), {"stopped": stopped, "hint": serving.pipeline.hint(request)}
        yield from record(source, request, rollout.fps, folder, **told, **options)
    except (GenerationError, SourceFailed) as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception:
        log.exception("a request failed")
        text = "The video could not be made; the fault is on this side. Please try again."
        raise gr.Error(text, print_exception=False) from None


def gone() -> Callable[[], bool]:
    """What tells whether the client of the present event has cancelled it or is gone, as Gradio's queue knows it."""
    blocks, mine = LocalContext.blocks.get(None), LocalContext.event_id.get(None)

    def waits() -> bool:
        jobs = [job for job in blocks._queue.active_jobs if job] if blocks else []
        return any(event._id == mine and event.alive for job in jobs for event in job)

    return (lambda: not waits()) if waits() else (lambda: False)  # what is not in the queue cannot be cancelled


def handed_out(path: Path) -> dict[str, Any]:
    """A file as the API gives it to programs: Gradio copies it into its cache."""
    return gr.FileData(path=str(path), orig_name=path.name).model_dump()


def generate(
    visitor: gr.Request,
    prompt: str,
    seed: int | str | None = None,
    blocks: int = DEFAULT_BLOCKS,
    size: str = "",
    steps: int = rollout.steps,
) -> Iterator[tuple[dict | None, int, dict]]:
    """Makes a video and returns the finished mp4, the seed that was used, and a report.

    While it runs, intermediate results have no file and a report with the blocks made so far; cancelling the
    job stops it at the next block, and /last has the video up to there.

    Args:
        prompt: What the video shows.
        seed: A whole number from 0 to 2**63 - 1 (as text where your language has no such integers). Leave it out to draw one. The same seed and settings give the same frames.
        blocks: Length of the video, in blocks of 12 frames (the first has 9); 7 blocks are 81 frames.
        size: Height x width in pixels, such as "128x128". Leave it out for the model's own size.
        steps: Denoising steps per block.

    Returns:
        The mp4 file (H.264); its metadata holds the settings.
        The seed.
        JSON: settings, frames, digest (sha256 of all raw frames), seconds, what the graph did (blocks, steps, resampled, skipped, stop_reason), and what served it (mode, key, source; if it was no binary, the reason). Where the video ended before its time: problem, in words. Where the prompt has words that the model does not know: hint, a sentence on them and on what it knows.
    """  # noqa: E501  (each entry is one line in the API page)
    request = checked(prompt, seed, blocks, size, steps)
    cancelled = gone()
    with closing(kept.begin(visitor.session_hash, cancelled)) as making:
        keeping = {"ending": "cancelled", "unfinished": making.keep_later}
        with closing(recorded(request, making.folder, cancelled, **keeping)) as parts:
            for part in parts:
                if isinstance(part, Progress):
                    if not cancelled():  # then it ends by itself, here; closing it would be left to Gradio
                        report = {"block": part.block, "blocks": part.blocks, "fps": round(part.fps, 1)}
                        yield None, request.seed, report
                elif part.path:
                    making.keep(part)
                    yield handed_out(part.path), request.seed, part.report


def last(visitor: gr.Request) -> Iterator[tuple[dict, int, dict]]:
    """The last video that this session made with /generate, also one that was cancelled: what was made until then.

    It is kept for an hour at most: until the session ends or makes the next one. No other session gets it; a program
    that names no session (session_hash; the clients for Python and JavaScript do) gets none.

    Returns:
        The mp4 file, as from /generate.
        The seed.
        JSON: the report, as from /generate; stop_reason is "cancelled" where the video was.
    """
    making = kept.last(visitor.session_hash)
    if making and not (making.video or making.closed or making.given_up()):
        raise gr.Error("Your video is still being made. Wait for its end, or cancel it.", print_exception=False)
    if making and not making.video:
        making.settled.wait(PATIENCE)
    if making and not making.settled.is_set():
        raise gr.Error("Your last video is still coming to its end. Ask again in a minute.", print_exception=False)
    if not making or not making.video:
        text = "Your last video ended before its first block, and nothing is kept of it."
        raise gr.Error(text if making else "There is no last video of this session.", print_exception=False)
    with tempfile.TemporaryDirectory(prefix="onegraph-video-") as folder:
        yield handed_out(making.video.copy_into(Path(folder))), making.video.report["seed"], making.video.report


# ------------------------------------------------------------------------------------------ the page's events


async def send_chunk(value: tuple[bytes, float] | None, output_id: str, first_chunk: bool) -> tuple[dict | None, dict]:
    """What a streaming gr.Video does with a value, for MPEG-TS chunks and their duration: pass them on as they are.

    Its own method probes and remuxes every chunk, for which ffmpeg and ffprobe would have to be on the machine.
    """
    chunk = value and {"data": value[0], "duration": value[1], "extension": ".ts"}
    name = {"orig_name": "video-stream.mp4", "meta": {"_type": "gradio.FileData"}}
    return chunk, {"path": output_id, "is_stream": True, **name}


def begin(
    prompt: str, seed: str, randomise: bool, blocks: int, size: str, steps: int, visitor: gr.Request
) -> tuple[Any, ...]:
    """Checks the form before anything is queued, settles the seed, and swaps Generate for Stop."""
    request = checked(prompt, random_seed() if randomise else seed, blocks, size, steps)
    told, mine = serving.pipeline.hint(request), threading.Event()
    if stops.setdefault(visitor.session_hash, mine) is not mine:
        raise gr.Error("Your last video is still being made. Stop it first.", title="One at a time")
    return (
        str(request.seed),
        gr.Button(visible=False),
        gr.Button("Stop", visible=True, interactive=True),
        gr.DownloadButton(value=None, interactive=False),
        line("waiting for its turn …", 0),
        gr.HTML(html.escape(told or ""), visible=told is not None),
    )


def stream(
    prompt: str, seed: str, blocks: int, size: str, steps: int, visitor: gr.Request
) -> Iterator[tuple[Any, ...]]:
    """Streams the video into the player; ends with the finished file, also when it was stopped early."""
    stopping, left = stops.get(visitor.session_hash) or threading.Event(), gone()
    request = checked(prompt, seed, blocks, size, steps)
    with tempfile.TemporaryDirectory(prefix="onegraph-video-") as folder:
        yield gr.skip(), line("starting …", 0), gr.skip()
        for part in recorded(request, Path(folder), lambda: stopping.is_set() or left(), chunks=True):
            if isinstance(part, Progress):
                text = f"block {part.block}/{part.blocks}, {part.fps:.0f} fps"
                yield (part.chunk, part.chunk_seconds), line(text, part.block / part.blocks), gr.skip()
            else:
                if part.problem:
                    gr.Warning(part.problem)
                button = gr.DownloadButton(value=part.path, interactive=True) if part.path else gr.skip()
                link = f' · <a href="{html.escape(link_of(request))}" title="This page with these settings">link</a>'
                yield gr.skip(), line(part.summary(), 1, link if part.path else ""), button


def stop(visitor: gr.Request) -> gr.Button:
    """Asks this visitor's video to end after the block that is being made."""
    if event := stops.get(visitor.session_hash):
        event.set()
    return gr.Button("Stopping …", interactive=False)


def leave(visitor: gr.Request) -> None:
    """The page was closed, or the program ended: nobody waits for its video any more."""
    kept.drop(visitor.session_hash)
    if event := stops.pop(visitor.session_hash, None):
        event.set()


def end(visitor: gr.Request) -> tuple[gr.Button, gr.Button]:
    """However the video ended: Generate is back."""
    stops.pop(visitor.session_hash, None)
    return gr.Button(visible=True), gr.Button(visible=False)


def failed(visitor: gr.Request) -> tuple[gr.Button, gr.Button, str]:
    """There is no video, and the reason was told: Generate is back."""
    return *end(visitor), line("no video was made", 0)


def from_file(path: str | None) -> tuple[Any, ...]:
    """Fills the form from the settings inside an mp4 made here."""
    if not path:
        return (gr.skip(),) * 6
    try:
        return form_values(read_settings(Path(path)))
    except (ValueError, OSError):
        raise gr.Error("This file holds no settings of a video made here.", print_exception=False) from None


def from_link(visitor: gr.Request) -> tuple[Any, ...]:
    """Fills the form from the page's address, where it carries settings; a broken link changes nothing."""
    settings = dict(visitor.query_params or {})
    try:
        return form_values(settings) if "prompt" in settings else (gr.skip(),) * 6
    except gr.Error:
        return (gr.skip(),) * 6


def form_values(settings: dict[str, Any]) -> tuple[Any, ...]:
    """Prompt, seed, randomise, blocks, size, steps; from values that may come from anyone."""
    values = {"seed": 0, "blocks": DEFAULT_BLOCKS, "size": "", "steps": rollout.steps} | settings
    good = settings_of(checked(*(values.get(name) for name in ("prompt", "seed", "blocks", "size", "steps"))))
    size = good["size"]
    if size not in dict(SIZES).values():
        gr.Info(f"This page does not offer the size {size}; {SIZES[0][1]} is set instead.")
        size = SIZES[0][1]
    return good["prompt"], str(good["seed"]), False, length(good["blocks"], value=good["blocks"]), size, good["steps"]


def length(blocks: int, **value: int) -> gr.Slider:
    """The length slider, saying what that many blocks are in seconds."""
    seconds = frames_in(blocks, serving.pipeline.config) / rollout.fps
    return gr.Slider(label=f"Length: {blocks} block{'s' * (blocks != 1)} = {seconds:.1f} s", **value)


def cost(blocks: int, size: str, steps: int) -> str:
    """What the video will cost a visitor on ZeroGPU, as HTML."""
    try:
        seconds = seconds_of(checked("a", 0, blocks, size, steps))
    except gr.Error:
        return ""  # will be said when it is asked for
    return f"<small>Takes about {quota_of(seconds)} s of your GPU quota</small>"


def line(text: str, done: float, more: str = "") -> str:
    """The status line under the player, below a bar that fills from 0 to 1. `more` is HTML."""
    bar = f'<div class="bar"><i style="width:{100 * done:.0f}%"></i></div>'
    return f'{bar}<p role="status">{html.escape(text)}{more}</p>'


def panel() -> tuple[str, str, str, gr.Timer]:
    """The badge in the page's corner, the tables of what runs and of its build, and the timer that stops asking once
    all is settled."""
    now = serving.status()
    badge = f'<span class="badge {"busy" if now.building else now.mode}">{html.escape(now.label)}</span>'
    facts = table(now.facts() | model_facts())
    build = table(now.build_facts()) + table(now.key_fields() or {"Key": "no binary serves"})
    return badge, facts, build, gr.Timer(active=now.building is not None)


def model_facts() -> dict[str, str]:
    """What is loaded, where it comes from and under which licence, in words for visitors."""
    facts = {"Model": rollout.title or serving.folder.name, "Licence": rollout.licence}
    weights = "; ".join(f"{part}: {source}" for part, source in located.sources.items())
    return {name: text for name, text in (facts | {"Weights": weights}).items() if text}


def table(rows: dict[str, str]) -> str:
    """Names and values as HTML."""
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"


def status() -> dict:
    """What serves requests: mode, the binary's source, key, size and build with every field of its key; what was
    tried before and why it does not serve; what is being built, and what became of publishing it; the model, where
    its weights come from, their licence, and why it is not the one that was asked for.

    Returns:
        JSON.
    """
    return serving.status().as_dict() | {"model": {**model_facts(), "problem": problem}}


# -------------------------------------------------------------------------------------------------- the page

THEME = gr.themes.Base(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="lg",
    font=["ui-sans-serif", "system-ui", "sans-serif"],  # nothing is fetched from elsewhere
    font_mono=["ui-monospace", "monospace"],
).set(body_background_fill="*neutral_50", button_primary_background_fill="linear-gradient(90deg, #4f46e5, #7c3aed)")
CSS = """
.gradio-container { max-width: 1200px !important; margin: 0 auto !important; padding: 0 !important; }
.gradio-container .main { padding: 10px 24px !important; }
.gradio-container footer { margin-top: 8px; }
.gradio-container .html-container { padding: 0; }
#head { align-items: center; justify-content: space-between; flex-wrap: nowrap; }
#head > * { flex: 0 1 auto !important; width: auto; }
#head h1 { display: inline; font-size: 1.3rem; letter-spacing: -.02em; margin-right: 12px; }
#head small { font-size: .95rem; opacity: .65; }
#cost small { opacity: .65; }
.badge { display: inline-block; padding: 3px 12px; border-radius: 99px; font-size: .85rem; white-space: nowrap;
  background: var(--neutral-200); color: var(--neutral-800); }
.badge::before { content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%;
  background: currentColor; margin-right: 7px; }
.badge.aot { background: #d6f5e3; color: #0b6b3a; }
.badge.busy { background: #fdf0cf; color: #8a5a00; }
.badge.busy::before { animation: pulse 1.2s infinite alternate; }
@keyframes pulse { to { opacity: .2; } }
#problem p { background: #fdf0cf; color: #8a5a00; border-radius: 12px; padding: 8px 14px; margin: 0; }
#stage { display: grid; gap: 14px 28px; grid-template-columns: minmax(0, 1fr) minmax(0, 540px);
  grid-template-areas: "ask play" "rest play"; grid-template-rows: auto 1fr; align-items: start; }
#ask { grid-area: ask; }
#play { grid-area: play; gap: 10px; }
#rest { grid-area: rest; }
#prompt textarea { font-size: 1.05rem; }
#player { height: min(calc(100vh - 190px), 540px); border-width: 0 !important; border-radius: 18px;
  background: #0c0f1a; box-shadow: 0 0 0 1px rgb(128 140 170 / 25%); }
#player * { background-color: transparent; }
#player video { width: 100%; height: 100%; object-fit: contain; }
#player .empty::after { content: "Your video plays here while it is being made"; color: #97a0b8; }
#player .empty .icon { display: none; }
#stop { background: #fde7e7; color: #b42318; }
#below { flex-wrap: nowrap; align-items: center; gap: 14px; }
#below > #status { flex: 1 1 0; min-width: 0; }
#below > #download { flex: 0 0 auto; min-width: 128px; }
#status p { margin: 5px 0 0; min-height: 1.4em; font-size: .92rem; font-variant-numeric: tabular-nums; }
#hint { font-size: .8rem; line-height: 1.3; opacity: .8; overflow-wrap: anywhere; }
.bar { height: 4px; border-radius: 2px; background: var(--neutral-200); overflow: hidden; }
.dark .bar { background: var(--neutral-700); }
.bar i { display: block; height: 100%; background: var(--primary-500); transition: width .25s; }
.rows table, .rows tr { border: none; margin: 0; }
.rows th, .rows td { border: none; padding: 3px 14px 3px 0; vertical-align: top; overflow-wrap: anywhere; }
.rows th { font-weight: 500; opacity: .65; white-space: nowrap; }
#knows { font-size: .8rem; line-height: 1.3; }
#knows th, #knows td { padding: 0 10px 1px 0; }
@media (max-width: 800px) {
  .gradio-container .main { padding: 8px 12px !important; }
  #head small { display: none; }
  #stage { grid-template-columns: minmax(0, 1fr); grid-template-areas: "ask" "play" "rest"; gap: 10px; }
  #player { height: min(calc(100vw - 24px), 44vh); }
  #rest .label { display: none; }
  #rest .gallery { flex-wrap: nowrap; overflow-x: auto; }
  #rest .gallery-item { flex: none; }
}
"""

prompts = world.examples or EXAMPLES

with gr.Blocks(title="Onegraph", analytics_enabled=False, delete_cache=(600, KEEP_FILES)) as page:
    with gr.Row(elem_id="head"):
        gr.HTML("<h1>Onegraph</h1><small>One prompt in, one video out, through one compiled graph.</small>")
        badge = gr.HTML(elem_id="badge")
    if problem:
        gr.HTML(f'<p role="alert">{html.escape(problem)} The embedded model serves instead.</p>', elem_id="problem")
    with gr.Row(elem_id="stage"):
        with gr.Column(elem_id="ask"):
            looks = {"lines": 2, "max_lines": 4, "autofocus": True, "placeholder": prompts[-1]}
            prompt = gr.Textbox(prompts[0], label="Prompt", elem_id="prompt", **looks)
            generate_button = gr.Button("Generate", variant="primary", elem_id="generate")
            price = gr.HTML(visible=ON_ZERO, elem_id="cost")
            stop_button = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
        with gr.Column(elem_id="play"):
            looks = {"show_label": False, "buttons": [], "interactive": False}
            player = gr.Video(streaming=True, autoplay=True, loop=True, elem_id="player", **looks)
            player.stream_output = send_chunk  # a subclass would make Gradio write an app.pyi beside this file
            with gr.Row(elem_id="below"):
                status_line = gr.HTML(line("ready", 0), elem_id="status")
                download = gr.DownloadButton("Download mp4", size="md", interactive=False, elem_id="download")
            hint = gr.HTML(visible=False, elem_id="hint")
        with gr.Column(elem_id="rest"):
            examples = gr.Examples([[text] for text in prompts], prompt, label="Try", api_visibility="private")
            if world.knows:
                gr.HTML(table(world.facts()), label="It knows", elem_id="knows", elem_classes="rows")
            with gr.Accordion("Settings", open=False, elem_id="settings"):
                with gr.Row():
                    seed = gr.Textbox("0", label="Seed", max_lines=1, elem_id="seed")
                    randomise = gr.Checkbox(True, label="New seed each time", elem_id="randomise")
                blocks = gr.Slider(1, MAX_BLOCKS, DEFAULT_BLOCKS, step=1, label="Length")
                with gr.Row():
                    size = gr.Radio(SIZES, value=SIZES[0][1], label="Size (width × height)")
                    steps = gr.Slider(1, MAX_STEPS, rollout.steps, step=1, label="Steps per block")
                upload = gr.UploadButton("Take the settings from an mp4 made here", size="sm", file_types=[".mp4"])
            with gr.Accordion("What runs", open=False, elem_id="panel"):
                facts = gr.HTML(elem_classes="rows")
            with gr.Accordion("Build", open=False, elem_id="build"):
                build = gr.HTML(elem_classes="rows")
    timer = gr.Timer(2)

    form = [prompt, seed, blocks, size, steps]
    hidden = {"api_visibility": "private", "show_progress": "hidden"}
    aside = {"concurrency_limit": None, **hidden}  # waits for nobody
    video = gr.on(
        [generate_button.click, prompt.submit],
        begin,
        [prompt, seed, randomise, blocks, size, steps],
        [seed, generate_button, stop_button, download, status_line, hint],
        **aside,
    ).success(stream, form, [player, status_line, download], concurrency_id="gpu", concurrency_limit=1, **hidden)
    ended = video.then(end, None, [generate_button, stop_button], **aside)
    # Gradio 6.31 promises that `then` follows a failure too, and does not keep it.
    video.failure(failed, None, [generate_button, stop_button, status_line], **aside)
    if ON_ZERO:
        settings = [blocks, size, steps]
        gr.on([page.load, blocks.change, size.change, steps.change], cost, settings, price, **aside)
        ended.then(cost, settings, price, **aside)
        ended.then(panel, None, [badge, facts, build, timer], **aside)  # a worker may have found other hardware
    stop_button.click(stop, None, stop_button, **aside)
    examples.load_input_event.success(None, js="() => document.querySelector('#generate')?.click()")
    gr.on([page.load, blocks.change], length, blocks, blocks, **aside)
    upload.upload(from_file, upload, [prompt, seed, randomise, blocks, size, steps], **aside)
    gr.on([page.load, timer.tick], panel, None, [badge, facts, build, timer], **aside)
    page.load(from_link, None, [prompt, seed, randomise, blocks, size, steps], **aside)
    page.unload(leave)
    generate.__annotations__["return"] = tuple[dict, int, dict]  # gr.api knows no iterators: it is asked for each item
    last.__annotations__["return"] = generate.__annotations__["return"]
    gr.api(generate, api_description=inspect.getdoc(generate), concurrency_id="gpu", concurrency_limit=1)
    gr.api(last, api_description=inspect.getdoc(last), concurrency_limit=4)  # they may wait, each in a thread
    gr.api(status, api_description=inspect.getdoc(status), concurrency_limit=None)

if __name__ == "__main__":
    page_is_up = threading.Event()
    if ON_ZERO:
        serving.prepare(build_on_gpu)  # workers are forked from what this process is then
    else:
        serving.prepare_in_background(when=page_is_up)  # both want the processor
    page.queue(max_size=64).launch(
        theme=THEME,
        css=CSS,
        prevent_thread_lock=True,
        enable_monitoring=False,  # it would print a secret address, and serve it
        run_history=False,
        show_error=False,
        strict_cors=True,
        footer_links=["api"],
        max_file_size="64mb",
    )
    serving.tell_memory("the process that serves the page")
    page_is_up.set()
    page.block_thread()
