"""A planner of kind `http`: Dormouse asks this service what a run does next.

    PLANNER_SECRET=whsec_… PORT=9001 python3 planner.py

It keeps nothing. All that it knows of a run comes with the request, so it may be restarted, run
twice or be asked the same round again: the same history gives the same answer.
"""
import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ["PLANNER_SECRET"]
TOLERANCE_S = 5 * 60
BODY_MAX = 16 * 1024 * 1024


def decide(asked):
    """Two quotes side by side, the cheaper one is paid, then the goods are waited for."""
    order = asked["run"]["input"]
    history = asked["history"]
    # What was wanted before, by the ids that this planner gave.
    outcomes = {outcome["id"]: outcome for past in history for outcome in past["intents"]}
    if history and history[-1]["flaw"]:
        # The last answer was none at all: a bug here, and saying the same again would not mend it.
        return {"failure": f"the planner was not understood: {history[-1]['flaw']}"}

    if not outcomes:
        wanted = {"part": order["part"], "quantity": order["quantity"]}
        return {"intents": [{"id": name, "tool": f"{name}.quote", "arguments": wanted} for name in ("north", "south")]}

    quotes = {name: outcomes[name] for name in ("north", "south")}
    # One that failed says why in `error`: a tool that refused, or an intent that did not fit its tool.
    declined = {name: quote["error"]["message"] for name, quote in quotes.items() if quote["status"] == "failed"}
    # Prices are in cents. The vendor's name settles a draw: nothing here may be left to chance.
    prices = sorted((quote["result"]["cents"], name) for name, quote in quotes.items() if name not in declined)
    if not prices:
        return {"failure": f"nobody has a price: {json.dumps(declined)}"}

    cents, vendor = prices[0]
    charge = outcomes.get("charge")
    if charge is None:
        return {"intents": [{"id": "charge", "tool": "payments.charge", "arguments": {"to": vendor, "cents": cents}}]}
    if charge["status"] == "failed":
        return {"failure": f"not paid: {charge['error']['message']}"}

    shipped = outcomes.get("shipped")
    if shipped is None:
        # It may take days. Nothing runs meanwhile, this service neither.
        return {"intents": [{"id": "shipped", "wait_for": "order.shipped", "timeout": "P7D"}]}
    if shipped["status"] == "failed":
        return {"failure": f"paid, but not shipped: {shipped['error']['message']}"}
    return {"output": {"vendor": vendor, "paid": charge["result"], "shipped": shipped["result"], "declined": declined}}


def is_signed(headers, body, now):
    """Whether these bytes come from whoever has the secret, and just now (standardwebhooks.com)."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    # No int() of what strangers sent: it takes more than digits.
    if not (sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 12) or abs(now - int(sent_at)) > TOLERANCE_S:
        return False
    key = base64.b64decode(SECRET[6:]) if SECRET.startswith("whsec_") else SECRET.encode()
    mac = hmac.new(key, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    wanted = b"v1," + base64.b64encode(mac)
    # There are several signatures while a secret is being changed; one is enough.
    given = headers.get("webhook-signature", "").encode("utf-8", "replace").split(b" ")
    return any([hmac.compare_digest(wanted, one) for one in given])


class Planner(BaseHTTPRequestHandler):
    def do_POST(self):
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > BODY_MAX:
            return self.answer(413, {"detail": "how long is it?"})
        body = self.rfile.read(int(length))
        # The signature is of the bytes as they came: check first, read then.
        if not is_signed(self.headers, body, time.time()):
            return self.answer(401, {"detail": "the signature is not right"})
        self.answer(200, decide(json.loads(body)))

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9001"))), Planner)
    print(f"planner on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
