"""Cells that speak to the coordinator in their kernel's name: each is a line of what a lie can be.

A cell has all that its kernel has: the key, the sockets, the identity of whoever listens. `PRELUDE`
gets them together; what follows it is one attack.
"""

PRELUDE = r"""
import json, hmac, hashlib, os, struct, threading
kernel = get_ipython().kernel
session, publisher = kernel.session, kernel.iopub_socket
raw, shell = publisher._socket, kernel.shell_stream.socket
mine = {"msg_id": kernel.get_parent("shell")["header"]["msg_id"]}
listener = kernel._parent_ident["shell"]
key = session.key

def signed(*parts):
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(part)
    return [b"<IDS|MSG>", mac.hexdigest().encode(), *parts]

def message(kind, content, parent=None, metadata=None):
    header = {"msg_id": os.urandom(8).hex(), "msg_type": kind, "session": "x", "username": "x",
              "date": "2000-01-01T00:00:00Z", "version": "5.4"}
    return signed(*(json.dumps(part).encode() for part in
                    (header, mine if parent is None else parent, metadata or {}, content)))

def publish(*frames):
    raw.send_multipart(list(frames))

def answer(*frames):
    shell.send_multipart([*listener, *frames])

def ask(*frames):
    kernel.stdin_socket.send_multipart([*listener, *frames])

def content(raw):
    publish(*signed(b"{}", b"{}", b"{}", raw))
"""

# Each breaks the protocol: its session's kernel is ended, with the cause `protocol`.
VIOLATIONS = {
    "a wrong signature": 'publish(b"<IDS|MSG>", b"0" * 64, b"{}", b"{}", b"{}", b"{}")',
    "no signature": 'publish(b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}")',
    "no delimiter": 'publish(b"hello")',
    "frames that are missing": 'publish(*signed(b"{}", b"{}"))',
    "no JSON": 'publish(*signed(b"{", b"{}", b"{}", b"{}"))',
    "not a number": "content(b'{\"a\": NaN}')",
    "a number that is too large": "content(b'{\"a\": 1e999}')",
    "parts that are no objects": 'publish(*signed(b"[]", b"{}", b"{}", b"{}"))',
    "a header with wrong types": 'publish(*signed(b\'{"msg_type": 7}\', b"{}", b"{}", b"{}"))',
    "no UTF-8": r'publish(*signed(b"\xff\xfe", b"{}", b"{}", b"{}"))',
    "deep content": 'content(b\'{"a":\' * 5000 + b"1" + b"}" * 5000)',
    "very deep content": 'content(b"[" * 10**5 + b"]" * 10**5)',
    "deep metadata": 'publish(*signed(b"{}", b"{}", b\'{"a":\' * 200 + b"1" + b"}" * 200, b"{}"))',
    "a number of many digits": 'content(b\'{"a": \' + b"9" * 10**5 + b"}")',
    "more values than we want": 'content(b\'{"a": [\' + b"[]," * 10**6 + b"1]}")',
    "one huge frame": 'content(b\'{"a": "\' + b"x" * 2**27 + b\'"}\')',
    "a huge reply": 'answer(*signed(b"{}", b"{}", b"{}", b\'{"a": "\' + b"x" * 2**24 + b\'"}\'))',
    "frames without end": 'publish(*[b"x" * 1000] * 100_000)',
    "a reply without a status": 'answer(*message("execute_reply", {"status": "fine"}))',
    "a reply whose status is no text": 'answer(*message("execute_reply", {"status": ["ok"]}))',
    "a broken connection": (
        "import socket\n"
        "for fd in range(3, 200):\n"
        "    try:\n"
        "        if os.readlink(f'/proc/self/fd/{fd}').startswith('socket:'): os.dup2(0, fd)\n"
        "    except OSError: pass\n"
        "import time; time.sleep(60)"
    ),
}

# Each is a lie that changes nothing: the cell's own result comes.
IGNORED = {
    "an output of another cell": (
        'publish(*message("stream", {"name": "stdout", "text": "forged"}, {"msg_id": "c_other"}))'
    ),
    "an output of nobody": 'publish(*message("stream", {"name": "stdout", "text": "forged"}, {}))',
    "a reply to another request": (
        'answer(*message("execute_reply", {"status": "ok"}, {"msg_id": "somebody_else_1"}))'
    ),
    "an idle of another request": (
        'publish(*message("status", {"execution_state": "idle"}, {"msg_id": "somebody_else_1"}))'
    ),
    "a type that nobody knows": 'publish(*message("launch_missiles", {"now": True}))',
    "comms of nobody without end": (
        "for n in range(20_000):\n"
        '    publish(*message("comm_open", {"comm_id": str(n)}, {"msg_id": "nobody"}))'
    ),
    "wrong types everywhere": (
        'publish(*message("display_data", {"data": 7, "metadata": [], "transient": "x"}))\n'
        'publish(*message("stream", {"name": 7, "text": {}}))\n'
        'publish(*message("execute_result", {"data": None, "execution_count": "x"}))\n'
        'publish(*message("error", {"ename": 1, "evalue": [], "traceback": 3}))\n'
        'publish(*message("clear_output", {"wait": "yes"}))\n'
        'publish(*message("status", {"execution_state": 9}))\n'
        'publish(*message("update_display_data", {}))'
    ),
    "tools where none are, without end": (
        "for n in range(5_000):\n"
        '    publish(*message("tool_request", {"id": n, "name": "x", "arguments": {}}))\n'
        '    publish(*message("tool_withdrawn", {"id": n}))'
    ),
    "a question where nobody answers": ('ask(*message("input_request", {"prompt": "?"}))'),
    "an input request of another cell": (
        "kernel.stdin_socket.send_multipart("
        '[*listener, *message("input_request", {"prompt": "?"}, {"msg_id": "x"})])'
    ),
}
