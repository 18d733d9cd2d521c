"""Two vendors and a till, for the planners to have something to call.

    PORT=9000 python3 shop.py

The till takes effect once for each Idempotency-Key: that is all that Dormouse asks of a tool.
"""
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

paid, lock = {}, Lock()


def charge(given, key):
    with lock:
        new = key not in paid
        receipt = paid.setdefault(key, {"receipt": len(paid) + 1, **given})
    print(f"{'paid' if new else 'paid before'}: {json.dumps(receipt)}", flush=True)
    return receipt


TOOLS = {
    "/north.quote": lambda given, key: {"cents": 120 * given["quantity"]},
    "/south.quote": lambda given, key: {"cents": 95 * given["quantity"] + 150},
    "/payments.charge": charge,
}


class Shop(BaseHTTPRequestHandler):
    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tool = TOOLS.get(self.path)
        body = json.dumps(tool(given, self.headers["idempotency-key"]) if tool else {"detail": "no such tool"}).encode()
        self.send_response(200 if tool else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Shop)
    print(f"shop on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
