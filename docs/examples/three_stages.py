#!/usr/bin/env python3
"""A driver of a three-stage job over plain HTTP, whose worker is killed. Standard library only.

    forebay serve --listen 127.0.0.1:7440 --set coordinator.heartbeat_interval=500ms --set coordinator.heartbeat_timeout=5s
    python3 three_stages.py http://127.0.0.1:7440

map (2 tasks) deals out numbers, join (2 tasks) adds up what it is dealt, sink adds up both sums. Worker w2 is killed with
SIGKILL in the middle of join#1. The coordinator misses its heartbeats and plans: join#1 alone runs again, under a new
attempt, and reads again what the finished map tasks have sealed. Prints one JSON line at the end.

The same file is the worker: it takes tasks as JSON lines on standard input.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

N = 10_000
PATIENCE = 60.0


class Refused(Exception):
    def __init__(self, status, problem):
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")
        self.code = problem.get("code")


class Api:
    """The calls of this example, one method each."""

    def __init__(self, url, job, epoch=None):
        self.url, self.job, self.epoch = url.rstrip("/"), job, epoch

    def open(self, method, path, body=None, headers=()):
        headers = dict(headers)
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.epoch is not None:
            headers["Forebay-Job-Epoch"] = str(self.epoch)
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=headers)
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, json.loads(error.read() or b"{}")) from None

    def call(self, method, path, body=None, headers=()):
        with self.open(method, f"/v1/jobs/{self.job}{path}", body, headers) as answer:
            data = answer.read()
        return json.loads(data) if data else None

    def report(self, vertex, index, attempt, state, **more):
        report = {"vertex": vertex, "index": index, "attempt": attempt, "state": state, **more}
        return self.call("POST", "/tasks", {"reports": [report]})["results"][0]

    def write(self, dataset, partition, attempt, parts):
        """Writes one partition under an attempt and seals it."""
        base = f"/datasets/{dataset}/partitions/{partition}/attempts"
        generation, number = attempt.split(".")
        opened = self.call("POST", base, {"generation": int(generation), "attempt": int(number)})
        life = {"Forebay-Node-Life": opened["location"]["life"], "Content-Type": "application/octet-stream"}
        for subpartition, data in enumerate(parts):
            self.call("PUT", f"{base}/{attempt}/subpartitions/{subpartition}?offset=0", data, life)
        self.call("POST", f"{base}/{attempt}/seal", None, {"Forebay-Node-Life": life["Forebay-Node-Life"]})

    def read(self, dataset, partition, subpartition):
        path = f"/v1/jobs/{self.job}/datasets/{dataset}/partitions/{partition}/subpartitions/{subpartition}"
        with self.open("GET", path) as answer:
            return answer.read()


# The computation. It knows nothing of failures.


def numbers(data):
    return [int(line) for line in data.split()]


def lines(values):
    return "".join(f"{value}\n" for value in values).encode()


def compute(api, vertex, index):
    """What a task writes, one piece for each subpartition."""
    if vertex == "map":
        own = range(index, N, 2)
        return [lines(n for n in own if n % 3 == 0), lines(n for n in own if n % 3 != 0)]
    if vertex == "join":
        return [lines([sum(sum(numbers(api.read("numbers", partition, index))) for partition in range(2))])]
    return [lines([sum(sum(numbers(api.read("sums", partition, 0))) for partition in range(2))])]


OUTPUT = {"map": "numbers", "join": "sums", "sink": "result"}


# The worker: registers, beats, runs what it is told.


def worker(url, job, epoch, name):
    api, life = Api(url, job, int(epoch)), secrets.token_hex(8)
    running, lock = [], threading.Lock()
    rules = api.call("PUT", f"/workers/{name}", {"life": life})

    def beat():
        while True:
            time.sleep(rules["heartbeat_interval_ms"] / 1000)
            with lock:
                beating = list(running)
            api.call("POST", f"/workers/{name}/heartbeat", {"life": life, "running": beating})

    threading.Thread(target=beat, daemon=True).start()
    for line in sys.stdin:
        task = json.loads(line)
        vertex, index, attempt = task["vertex"], task["index"], task["attempt"]
        with lock:
            running.append({"vertex": vertex, "index": index, "attempt": attempt})
        if api.report(vertex, index, attempt, "running", worker=name) not in ("accepted", "duplicate"):
            continue
        parts = compute(api, vertex, index)
        if task.get("stall"):
            print("stalled", flush=True)
            time.sleep(PATIENCE)
        api.write(OUTPUT[vertex], index, attempt, parts)
        with lock:
            running.clear()
        api.report(vertex, index, attempt, "finished")
    api.call("DELETE", f"/workers/{name}?life={life}")


# The driver: declares, deploys, follows events, carries out plans.


def events(api):
    """Server-sent events, over as many connections as it takes."""
    cursor = None
    while True:
        headers = {"Last-Event-ID": cursor} if cursor else {}
        try:
            with api.open("GET", f"/v1/jobs/{api.job}/recovery-events", None, headers) as stream:
                yield {"kind": "connected"}
                for line in stream:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        cursor = value
                    elif name == "data":
                        yield json.loads(value)
        except OSError:
            time.sleep(0.2)


class Workers:
    def __init__(self, api, names):
        arguments = [sys.executable, os.path.abspath(__file__), "worker", api.url, api.job, str(api.epoch)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = {name: subprocess.Popen([*arguments, name], **pipes) for name in names}

    def deploy(self, name, vertex, index, attempt, stall=False):
        process = self.processes[name]
        process.stdin.write(json.dumps({"vertex": vertex, "index": index, "attempt": attempt, "stall": stall}) + "\n")
        process.stdin.flush()

    def kill(self, name):
        process = self.processes.pop(name)
        process.stdout.readline()  # it says that it is in the middle of its task
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self):
        for process in self.processes.values():
            process.stdin.close()
            process.wait(timeout=PATIENCE)


def wait_for(api, what, is_done):
    begun = time.monotonic()
    while not is_done({(task["vertex"], task["index"]): task["state"] for task in api.call("GET", "/tasks")["tasks"]}):
        if time.monotonic() - begun > PATIENCE:
            raise SystemExit(f"{what}: not within {PATIENCE} s")
        time.sleep(0.05)


def driver(url):
    job = f"three-stages-{secrets.token_hex(4)}"
    api = Api(url, job)
    api.epoch = api.call("PUT", "", {"owner_nonce": secrets.token_hex(8)})["epoch"]
    for dataset, subpartitions in (("numbers", 2), ("sums", 1), ("result", 1)):
        api.call("PUT", f"/datasets/{dataset}", {"kind": "blocking", "subpartitions": subpartitions})
    api.call("PUT", "/graph", {
        "vertices": [{"name": name, "parallelism": tasks} for name, tasks in (("map", 2), ("join", 2), ("sink", 1))],
        "datasets": [
            {"dataset": "numbers", "producer": "map", "kind": "blocking", "readers": [{"vertex": "join", "pattern": "all_to_all"}]},
            {"dataset": "sums", "producer": "join", "kind": "blocking", "readers": [{"vertex": "sink", "pattern": "all_to_all"}]},
            {"dataset": "result", "producer": "sink", "kind": "blocking"},
        ],
        "policy": {"strategy": "region"},
    })
    stream = events(api)
    assert next(stream)["kind"] == "connected"

    workers = Workers(api, ["w1", "w2"])
    workers.deploy("w1", "map", 0, "0.0")
    workers.deploy("w2", "map", 1, "0.0")
    wait_for(api, "map", lambda states: states["map", 0] == states["map", 1] == "finished")
    workers.deploy("w1", "join", 0, "0.0")
    workers.deploy("w2", "join", 1, "0.0", stall=True)
    wait_for(api, "join#0", lambda states: states["join", 0] == "finished" and states["join", 1] == "running")
    killed_at = time.monotonic()
    workers.kill("w2")

    ready = next(event for event in stream if event["kind"] == "ready")
    planned_after = time.monotonic() - killed_at
    plan = api.call("GET", f"/plans/{ready['plan']}")
    attempts = {(one["vertex"], one["index"]): one["attempt"] for one in plan["restart"]}
    for wave in plan["waves"]:
        for task in wave["tasks"]:
            workers.deploy("w1", task["vertex"], task["index"], attempts[task["vertex"], task["index"]])
    wait_for(api, "join#1", lambda states: states["join", 1] == "finished")
    workers.deploy("w1", "sink", 0, "0.0")
    wait_for(api, "sink", lambda states: states["sink", 0] == "finished")
    workers.end()

    result = numbers(api.read("result", 0, 0))[0]
    api.call("DELETE", "")
    print(json.dumps({
        "result": result,
        "expected": N * (N - 1) // 2,
        "restarted": [f"{vertex}#{index} {attempt}" for (vertex, index), attempt in attempts.items()],
        "because": [because["rule"] for because in plan["because"]],
        "reread_bytes": plan["cost"]["reread_bytes"],
        "tasks_of_full_restart": plan["cost_of_full"]["n_tasks"],
        "planned_after_s": round(planned_after, 3),
    }))
    if result != N * (N - 1) // 2:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:6])
    else:
        driver(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7440")
