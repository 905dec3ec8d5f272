"""Run the example session over HTTP and print its transcript as Markdown.

    replsvc serve --port 0 --ready-file ready.json \\
        --ext 'examples/data_analysis/extensions.py:datasets={"max_rows": 500}' \\
        --ext examples/data_analysis/extensions.py:house_style &
    python examples/data_analysis/run.py ready.json
"""

import json
import sys
from pathlib import Path

import httpx
from cells import CELLS, FILES, Cell


def events(client: httpx.Client, path: str, after: int):
    """The session's events from number `after` on, as they happen."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    with client.stream("GET", path, headers=headers, timeout=120) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def run_cell(client: httpx.Client, session: str, cell: Cell) -> dict:
    """Run one cell; one that is to be interrupted is followed until it has said enough."""
    body = {"tool": "repl", "input": {"code": cell.code, "title": cell.title}}
    if cell.interrupt_after is None:
        return client.post(f"{session}/calls", json=body).raise_for_status().json()
    call = client.post(f"{session}/calls", json=body | {"detach": True}).raise_for_status().json()
    seen, interrupted = "", False
    for event in events(client, f"{session}/events", call["seq"]):
        seen += event["data"].get("text", "") if event["kind"] == "output" else ""
        if event["kind"] == "call_finished" and event["call_id"] == call["id"]:
            return event["data"]["call"]
        if cell.interrupt_after in seen and not interrupted:
            interrupted = True
            client.post(f"{session}/interrupt").raise_for_status()
    raise RuntimeError("the event stream ended before the call did")


def run(url: str, key: str) -> list[tuple[Cell, dict]]:
    """Open the session, run every cell, close it; gives each cell with its call."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        body = {"name": "data analysis", "files": FILES}
        session = client.post("/v1/sessions", json=body).raise_for_status().json()
        path = f"/v1/sessions/{session['id']}"
        try:
            return [(cell, run_cell(client, path, cell)) for cell in CELLS]
        finally:
            client.delete(path).raise_for_status()


def text_of(call: dict) -> str:
    """All text that the model reads."""
    return "\n".join(part["text"] for part in call["content"] if part["type"] == "text")


def main() -> None:
    """See the module."""
    ready = json.loads(Path(sys.argv[1]).read_text())
    for cell, call in run(ready["url"], ready["key"]):
        images = sum(part["type"] == "image" for part in call["content"])
        print(f"\n### {cell.title} ({call['status']}, {call['duration_ms']:.0f} ms)")
        print(f"```python\n{cell.code.strip()}\n```")
        text = text_of(call)
        print(f"```\n{text if len(text) < 1_500 else text[:700] + ' … ' + text[-700:]}\n```")
        if images:
            print(f"({images} image)")


if __name__ == "__main__":
    main()
