"""A planner of kind `external`: Dormouse asks nobody, and this script sends it what is to be done.

    DORMOUSE_URL=http://127.0.0.1:8787 DORMOUSE_KEY=dev-key python3 external.py 42

It keeps nothing: the order's number is the Idempotency-Key of the run, and an intent that was sent
before is accepted again and does nothing. So it may be killed at any point and started again.
"""
import json
import os
import sys
import urllib.request

URL = os.environ.get("DORMOUSE_URL", "http://127.0.0.1:8787")
KEY = os.environ.get("DORMOUSE_KEY", "dev-key")
ENDED = ("completed", "failed", "cancelled")


def call(method, path, body=None, **headers):
    request = urllib.request.Request(URL + path, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("authorization", f"Bearer {KEY}")
    request.add_header("content-type", "application/json")
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    return urllib.request.urlopen(request, timeout=330)


def run_of(run_id):
    return json.load(call("GET", f"/v1/runs/{run_id}"))


def send(*envelopes):
    """Those of one run are taken in their order. What may be left out (event_id, idempotency_key, …) is."""
    answer = json.load(call("POST", "/v1/envelopes", list(envelopes)))
    if answer["rejected"]:
        sys.exit(f"refused, and kept as a dead letter: {json.dumps(answer['rejected'])}")


def want(run_id, step_index, tool, **arguments):
    payload = {"tool": tool, "arguments": arguments}
    return {"schema_version": "1", "event_type": "tool.requested", "run_id": run_id, "step_index": step_index, "payload": payload}


def until_done(run_id, count):
    """Follows the run's log until its first `count` steps are over, and gives their results."""
    seq = 0
    while True:
        # The stream ends after some minutes, or with the run: each is a reason to look, and to come back.
        with call("GET", f"/v1/runs/{run_id}/events?after={seq}", accept="text/event-stream") as stream:
            for line in stream:
                if not line.startswith(b"data:"):
                    continue
                seq = json.loads(line[5:])["seq"]
                run = run_of(run_id)
                steps = run["steps"][:count]
                if run["status"] in ENDED and run["status"] != "completed":
                    sys.exit(f"{run_id} is {run['status']}: {run['error']}")
                # One that failed holds the run as a dead letter, until a person has settled it.
                if len(steps) == count and all(step["status"] == "completed" for step in steps):
                    return [step["result"] for step in steps]


def main(order):
    started = {"agent": "outside-buyer", "input": {"part": "M8", "quantity": 10}, "tags": {"order": order}}
    run = json.load(call("POST", "/v1/runs", started, idempotency_key=f"order-{order}"))
    run_id, wanted = run["run_id"], run["input"]

    # Steps are counted from 0 without gaps. These two are called side by side.
    send(want(run_id, 0, "north.quote", **wanted), want(run_id, 1, "south.quote", **wanted))
    north, south = until_done(run_id, 2)
    vendor, quote = ("south", south) if south["cents"] < north["cents"] else ("north", north)

    send(want(run_id, 2, "payments.charge", to=vendor, cents=quote["cents"]))
    paid = until_done(run_id, 3)[2]

    if run_of(run_id)["status"] not in ENDED:
        output = {"vendor": vendor, "paid": paid}
        send({"schema_version": "1", "event_type": "plan.completed", "run_id": run_id, "step_index": None, "payload": {"output": output}})
    print(json.dumps(run_of(run_id)["output"] or output))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "42")
