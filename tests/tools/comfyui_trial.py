"""The offline workflow of examples/comfyui in ComfyUI's own engine, with PaddleMIX's nodes. By hand, not by pytest:

    python tests/tools/comfyui_trial.py COMFYUI COMFYUI_PPDIFFUSERS                    # prints what ran
    python tests/tools/comfyui_trial.py COMFYUI COMFYUI_PPDIFFUSERS --page PICTURE     # and draws in ComfyUI's page

The Python is the one that runs ComfyUI, with Paddle, ppdiffusers and this package in it, and scikit-image, which judges
the pictures; for the page, playwright and a Chromium too. COMFYUI is ComfyUI's folder, COMFYUI_PPDIFFUSERS the folder
of that name in PaddleMIX. Nothing is written into either: ComfyUI gets a temporary folder for its nodes and pictures.
It exits with an error where a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

from ppdiffusers_tome.tools.demo_model.recognition import shows_subject

OURS = Path(__file__).resolve().parents[2] / "examples" / "comfyui"
LONGEST = 3600  # seconds, for one workflow
WAIT = 120_000  # milliseconds, for the page
BEHIND = ["PaddleTokenMerging", "PaddleSDText2ImagePipe", "PaddleSDVaeDecoder", "PaddleSaveImage"]
SMALL = dict(width=128, height=128, steps=4)
OWN = "ratio and method"


@contextmanager
def engine(comfyui: Path, paddlemix: Path, base: Path) -> Iterator[str]:
    """ComfyUI without a GPU, its models, nodes and pictures in ``base``. Yields its address."""
    for name in ("custom_nodes", "models", "input", "output", "user"):
        (base / name).mkdir()
    for name, folder in (("ComfyUI_ppdiffusers", paddlemix), ("ComfyUI_ppdiffusers_tome", OURS)):
        (base / "custom_nodes" / name).symlink_to(folder.resolve(), target_is_directory=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [
        sys.executable, str(comfyui.resolve() / "main.py"), "--cpu", "--port", str(port), "--base-directory", str(base),
        "--disable-api-nodes", "--disable-auto-launch", "--database-url", "sqlite:///:memory:",
    ]  # fmt: skip
    surroundings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    log = base / "log.txt"
    with log.open("w") as words:
        running = subprocess.Popen(program, stdout=words, stderr=subprocess.STDOUT, cwd=base, env=surroundings)
    try:
        while "To see the GUI go to" not in log.read_text(errors="replace"):
            if running.poll() is not None:
                sys.exit(f"ComfyUI did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


async def run(address: str, nodes: dict[str, Any]) -> tuple[list[str], dict[str, str], float]:
    """The kinds of the nodes that ran, in their order; the files saved now or before, by their node; seconds."""
    ran: list[str] = []
    start = time.perf_counter()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LONGEST)) as session:
        async with session.ws_connect(f"{address}/ws?clientId=trial") as events:
            async with session.post(f"{address}/prompt", json={"prompt": nodes, "client_id": "trial"}) as answer:
                told = await answer.json()
                if answer.status != 200:
                    sys.exit(f"ComfyUI refused the workflow: {json.dumps(told, indent=1)}")
            async for event in events:
                if event.type is not aiohttp.WSMsgType.TEXT:
                    continue
                message = json.loads(event.data)
                kind, data = message["type"], message["data"]
                if kind == "execution_error":
                    sys.exit(f"{data['node_type']}: {data['exception_message']}\n{''.join(data['traceback'])}")
                if kind == "executing" and data["node"] is None:
                    break
                if kind == "executing":
                    ran.append(nodes[data["node"]]["class_type"])
        async with session.get(f"{address}/history/{told['prompt_id']}") as answer:
            outputs = (await answer.json())[told["prompt_id"]]["outputs"]
    saved = {number: each["filename"] for number, output in outputs.items() for each in output["images"]}
    return ran, saved, time.perf_counter() - start


def read(file: str) -> dict[str, Any]:
    return json.loads((OURS / file).read_text(encoding="utf-8"))


def workflow(settings: dict[str, Any] | None = None, **widgets: Any) -> dict[str, Any]:
    """The file; with other settings of the node for token merging, and other widgets of the samplers."""
    nodes = read("workflow_bundled_api.json")
    for node in nodes.values():
        if node["class_type"] == "PaddleSDText2ImagePipe":
            node["inputs"].update(widgets)
        if node["class_type"] == "PaddleTokenMerging":
            node["inputs"].update(settings or {})
    return nodes


def branch(nodes: dict[str, Any], name: str) -> dict[str, Any]:
    """What one of the pictures takes, alone."""
    left = [number for number, node in nodes.items() if node["inputs"].get("filename_prefix") == name]
    for number in left:
        left += [each[0] for each in nodes[number]["inputs"].values() if isinstance(each, list) and each[0] not in left]
    return {number: nodes[number] for number in sorted(left, key=int)}


class Trial:
    """Runs workflows in turn and says of each what ran."""

    def __init__(self, address: str, pictures: Path) -> None:
        self.address, self.pictures = address, pictures

    def __call__(self, what: str, nodes: dict[str, Any]) -> tuple[list[str], dict[str, np.ndarray]]:
        """The kinds of the nodes that ran, and the pictures by the names in the workflow."""
        ran, saved, seconds = asyncio.run(run(self.address, nodes))
        print(f"{what}: {len(ran)} nodes ran in {seconds:.0f} s ({', '.join(ran) or 'all kept'})", flush=True)
        drawn = {}
        for number, file in saved.items():
            drawn[nodes[number]["inputs"]["filename_prefix"]] = np.asarray(Image.open(self.pictures / file), "int16")
        return ran, drawn


def check(right: bool, what: str) -> None:
    print(f"  {'yes' if right else 'NO'}: {what}", flush=True)
    if not right:
        sys.exit(1)


def try_all(trial: Trial) -> None:
    nodes = workflow()
    ran, drawn = trial("workflow_bundled_api.json", nodes)
    check(sorted(ran) == sorted(node["class_type"] for node in nodes.values()), "every node ran once")
    sizes = {each.shape for each in drawn.values()}
    check(drawn.keys() == {"unmerged", "merged"} and sizes == {(512, 512, 3)}, "two pictures of 512x512 were saved")
    for name, picture in drawn.items():
        check(shows_subject(picture.astype("uint8"), "a photo of a cat") is True, f"the {name} one shows the cat")
    apart = np.abs(drawn["merged"] - drawn["unmerged"]).mean()
    check(0 < apart < 25, f"they are alike and not the same: {apart:.1f} of 255 between their pixels")
    check(trial("the same again", nodes)[0] == [], "no node ran")

    plain = {}
    for settings in ({}, dict(settings=OWN, ratio=0.7), dict(settings=OWN, ratio=0.3, end=0.5), dict(settings="off")):
        told = ", ".join(f"{name}={value}" for name, value in settings.items()) or "in small"
        ran, drawn = trial(told, workflow(settings, **SMALL))
        if settings:
            check(ran == BEHIND, "what is before the node for token merging was kept")
            check(np.array_equal(drawn["unmerged"], plain["unmerged"]), "the unmerged picture is the same")
        plain[told], plain["unmerged"] = drawn["merged"], drawn["unmerged"]
    check(np.array_equal(plain["settings=off"], plain["unmerged"]), "with 'off' the merged one is too")
    check(not np.array_equal(plain["in small"], plain["unmerged"]), "with 'balanced' it does not")
    for name, expected in (("merged", plain["in small"]), ("unmerged", plain["unmerged"])):
        _, drawn = trial(f"{name} alone, in small", branch(workflow(**SMALL), name))
        check(np.array_equal(drawn[name], expected), "the picture is the one of both branches together")


def take(address: str, picture: Path) -> None:
    """Open both files of the page in it, draw the offline one, and write how that looks."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1840, "height": 1020})
        tab.goto(address)
        tab.wait_for_function("window.app?.graph && window.app.extensionManager", timeout=WAIT)
        tab.get_by_text("Get Started with a Template").wait_for(timeout=WAIT)  # as it greets on the first visit
        tab.keyboard.press("Escape")
        for file in ("workflow", "workflow_bundled"):
            tab.evaluate(f"graph => window.app.loadGraphData(graph, true, true, '{file}')", read(f"{file}.json"))
            made = tab.evaluate("async () => (await window.app.graphToPrompt()).output")
            told, expected = (
                {number: (node["class_type"], node["inputs"]) for number, node in nodes.items()}
                for nodes in (made, read(f"{file}_api.json"))
            )
            check(told == expected, f"of {file}.json the page makes {file}_api.json")
        tab.evaluate("() => window.app.queuePrompt(0)")
        shown = "() => window.app.graph.nodes.filter(node => node.imgs?.length).length == 2"
        tab.wait_for_function(shown, timeout=1000 * LONGEST)
        tab.evaluate(
            """async () => {
                for (const name of ["Minimap.Visible", "Graph.CanvasInfo", "Graph.CanvasMenu"])
                    await window.app.extensionManager.setting.set(`Comfy.${name}`, false);
                window.app.canvas.ds.scale = 1;
                window.app.canvas.ds.offset = [25, 65];
                window.app.canvas.setDirty(true, true);
            }"""
        )
        tab.wait_for_timeout(3000)
        tab.screenshot(path=picture)
        browser.close()
    Image.open(picture).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT).save(picture, optimize=True)
    print(f"  {picture} shows both pictures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comfyui", type=Path, help="ComfyUI's folder")
    parser.add_argument("paddlemix", type=Path, help="PaddleMIX's comfyui/ComfyUI_ppdiffusers")
    parser.add_argument("--page", type=Path, metavar="PICTURE", help="draw in ComfyUI's page, and take its picture")
    given = parser.parse_args()
    version = re.search(r'"(.+)"', (given.comfyui / "comfyui_version.py").read_text())
    print(f"ComfyUI {version[1] if version else '?'}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        engine(given.comfyui, given.paddlemix, Path(folder)) as address,
    ):
        if given.page:
            take(address, given.page)
        else:
            try_all(Trial(address, Path(folder) / "output"))


if __name__ == "__main__":
    main()
