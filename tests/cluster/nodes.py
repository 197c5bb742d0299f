"""A real Ray cluster on this machine: each node has addresses, processes and shared memory of its own.

with Cluster(3) as cluster:
    driver = cluster.start(cluster.head, "-m", "envsdk.train", "run.yaml", f"ray.address={cluster.address}")
    cluster.kill(cluster.nodes[2])
    joined = cluster.join()

A node is a set of namespaces (network, processes, mounts) with an Ethernet link to a switch, a bridge in
a namespace of its own. Nothing has a name outside: any number of clusters use the same addresses side by
side, and the kernel removes it all when this process ends, however it ends. Where namespaces are refused, the
nodes are raylets on one loopback, and links cannot be cut or slow.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.soak_parts.patience import Patience
from envsdk.base.net.rendezvous import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
NETWORK, LOOPBACK = "10.77.0", "127.77.0"
STORE = f"{NETWORK}.254"
START_S = 120.0
STORE_BYTES = 150_000_000
RAY = str(Path(sys.executable).with_name("ray"))

HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
}
"""A silent node is given up after some 13 s in place of a minute."""

ALIVE = "0"
"""A node's state, as Ray numbers them."""
NODES_SCRIPT = """
import sys
from ray._raylet import GcsClient
for node in GcsClient(address=sys.argv[1]).get_all_node_info().values():
    print(node.node_id.hex(), node.node_manager_address, node.state)
"""


class Kind(StrEnum):
    """What nodes are made of."""

    NAMESPACES = "network namespaces"
    USER_NAMESPACES = "network namespaces in a user namespace"
    LOOPBACK = "raylets on one loopback"


@functools.cache
def kind() -> Kind:
    """What this machine allows; ENVSDK_CLUSTER=loopback asks for less."""
    wanted = os.environ.get("ENVSDK_CLUSTER", "")
    tools = all(map(shutil.which, ("ip", "mount", "nsenter", "unshare")))
    tries = [] if wanted == "loopback" or not tools else [Kind.NAMESPACES, Kind.USER_NAMESPACES]
    for found in tries[1:] if wanted == "user" else tries:
        probe = ["unshare", *_user(found), "--net", "--mount", "--pid", "--fork", "--mount-proc"]
        link = "ip link add probe type bridge && mount -t tmpfs tmpfs /dev/shm"
        if subprocess.run([*probe, "sh", "-c", link], capture_output=True, check=False).returncode == 0:
            return found
    return Kind.LOOPBACK


def _user(found: Kind) -> list[str]:
    return ["--user", "--map-root-user"] if found is Kind.USER_NAMESPACES else []


class Space:
    """Namespaces that live as long as a process that holds them."""

    def __init__(self, owner: Space | None = None, own_folders: Sequence[Path] = ()) -> None:
        """`owner` gives the user namespace; `own_folders` are empty here, apart from those of others."""
        user = kind() is Kind.USER_NAMESPACES
        enter_user = ["nsenter", f"--user=/proc/{owner.pid}/ns/user"] if user and owner else []
        new_user = _user(kind()) if owner is None else []
        flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        holder = [sys.executable, "-IS", str(HERE / "holder.py"), "/dev/shm", *map(str, own_folders)]
        self._process = subprocess.Popen(
            [*enter_user, "unshare", *new_user, *flags, *holder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("namespaces could not be made")
        self.pid = self._process.pid
        of = f"/proc/{self.pid}/ns"
        users = [f"--user=/proc/{owner.pid if owner else self.pid}/ns/user"] if user else []
        self._on_network = ["nsenter", *users, f"--net={of}/net"]
        self.inside = [*self._on_network, f"--mount={of}/mnt", f"--pid={of}/pid_for_children"]

    def run(self, *command: str) -> None:
        """On its network, with the processes of this one in sight."""
        subprocess.run([*self._on_network, *command], check=True, stdout=subprocess.DEVNULL)

    def processes(self) -> list[psutil.Process]:
        """All but the one that holds the namespaces. Commands that entered have their parent outside."""
        with suppress(OSError):
            mine = os.readlink(f"/proc/{self.pid}/ns/pid_for_children")
            return [each for each in psutil.process_iter() if self._is_in(each.pid, mine)][1:]
        return []

    @staticmethod
    def _is_in(pid: int, namespace: str) -> bool:
        with suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/pid") == namespace
        return False

    def end(self) -> None:
        """Every process in it is killed, in one moment; its links go with it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            if stream.readable():
                stream.read()  # ends when the kernel has ended the holder
            stream.close()


@dataclass(eq=False, kw_only=True)
class Node:
    """One node. Owner: its cluster."""

    number: int
    """From 1: the head."""
    address: str
    space: Space | None
    log: Path
    raylet: subprocess.Popen[bytes] | None = None
    """`ray start --block`."""
    commands: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def inside(self) -> list[str]:
        """What a command starts with to run on this node."""
        return self.space.inside if self.space else []

    def processes(self) -> list[psutil.Process]:
        """Of its Ray."""
        if self.space is not None:
            return self.space.processes()
        with suppress(psutil.NoSuchProcess):
            if self.raylet is not None:
                top = psutil.Process(self.raylet.pid)
                return [top, *top.children(recursive=True)]
        return []

    def actors(self) -> Counter[str]:
        """How many actors of each class run here."""
        return Counter(name for name, _ in self._actors())

    def pids(self, actor: str) -> list[int]:
        """Of the actors of this class, as this process sees them."""
        return [pid for name, pid in self._actors() if name == actor]

    def _actors(self) -> list[tuple[str, int]]:
        found = []
        for process in self.processes():
            with suppress(psutil.Error, IndexError):
                title = process.cmdline()[0]
                if title.startswith("ray::") and title != "ray::IDLE":
                    found.append((title.removeprefix("ray::").partition(".")[0].split()[0], process.pid))
        return found


class Cluster:
    """up -> (join | kill | cut | mend | drain | notice)* -> down, as a context manager.

    `cpus` are Ray's CPUs of each node; a cluster takes its last number for nodes that join. `own_folders`
    are empty on all nodes but the head, and what is written there stays there. `delay_s` and `loss` hold for
    each direction of each link but the head's. With `storage` the head keeps its tables in a Redis server
    beside the nodes. `labels` are Ray's, by the node's number.
    """

    def __init__(
        self,
        num_nodes: int = 3,
        *,
        cpus: Sequence[int] = (2,),
        own_folders: Sequence[Path] = (),
        delay_s: float = 0.0,
        loss: float = 0.0,
        storage: bool = False,
        labels: Mapping[int, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._num_nodes = num_nodes
        self._cpus = cpus
        self._own_folders = own_folders
        self._delay_s, self._loss = delay_s, loss
        self._storage = storage
        self._labels = labels or {}
        self._is_isolated = kind() is not Kind.LOOPBACK
        self._port = 6379 if self._is_isolated else free_port("127.0.0.1")
        self._env = dict(env or {})
        self._switch: Space | None = None
        self._helpers: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, Node] = {}
        self._last = 0
        self.folder = Path()
        self.up_s = 0.0
        """How long it took until all nodes were there."""

    def __enter__(self) -> Cluster:
        begun = time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="ecl-"))  # short: Ray's sockets lie below
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        self.up_s = time.monotonic() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for node in self.nodes.values():
                with suppress(OSError):
                    sys.stderr.write(f"node {node.number}: {node.log.read_text()[-1000:]}\n")
        self.down()

    @property
    def address(self) -> str:
        """For `ray.address`."""
        return f"{self._address(1)}:{self._port}"

    @property
    def head(self) -> Node:
        return self.nodes[1]

    def up(self) -> None:
        """The head, then all others at once."""
        (self.folder / "token").write_text(os.urandom(32).hex())
        if self._is_isolated:
            self._switch = Space()
            self._switch.run("ip", "link", "add", "switch", "type", "bridge")
            self._switch.run("ip", "addr", "add", f"{STORE}/24", "dev", "switch")
            for device in ("lo", "switch"):
                self._switch.run("ip", "link", "set", device, "up")
        if self._storage:
            self._start_storage()
        self._begin(1)
        self._wait_for(self.head)
        for number in range(2, self._num_nodes + 1):
            self._begin(number)
        for number in range(2, self._num_nodes + 1):
            self._wait_for(self.nodes[number])

    def join(self, number: int | None = None) -> Node:
        """One more node, or one that was killed once more."""
        node = self._begin(number or self._last + 1)
        self._wait_for(node)
        return node

    def kill(self, node: Node, *, silently: bool = False) -> None:
        """Its raylet, workers and all else there are killed; silently: the others' connections stay open."""
        if silently:
            self.cut(node)
        self._end(node)
        del self.nodes[node.number]

    def cut(self, node: Node) -> None:
        """Nothing passes between the node and the others."""
        self._set_link(node, "down")

    def mend(self, node: Node) -> None:
        """The link works again."""
        self._set_link(node, "up")

    def drain(self, node: Node, deadline_s: int) -> None:
        """Ray is told that the node will be gone by then."""
        self._ray(
            *("drain-node", f"--address={self.address}", f"--node-id={self.node_id(node)}"),
            *("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test"),
            f"--deadline-remaining-seconds={deadline_s}",
        )

    def notice(self, node: Node) -> None:
        """SIGTERM to `ray start --block`, as a machine that is taken back gets it."""
        for process in node.processes():
            with suppress(psutil.Error):
                if "--block" in process.cmdline():
                    process.send_signal(signal.SIGTERM)
                    return

    def node_id(self, node: Node) -> str:
        """Ray's, of the node that lives at this address."""
        wanted = (node.address, ALIVE)
        return next(each for each, address, state in self._listed() if (address, state) == wanted)

    def alive(self) -> list[str]:
        """Addresses of the nodes that Ray takes for alive."""
        return [address for _, address, state in self._listed() if state == ALIVE]

    def start(self, node: Node, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
        """Python with these arguments on a node; its output comes as one stream."""
        process = subprocess.Popen(
            # A folder may be another one inside: it is changed there.
            [*node.inside, "env", f"--chdir={cwd}", sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=self.env(),
        )
        node.commands.append(process)
        return process

    def interrupt(self, command: subprocess.Popen[str]) -> None:
        """SIGINT to what `start` started."""
        process = psutil.Process(command.pid)
        (process.children() if self._is_isolated else [process])[0].send_signal(signal.SIGINT)

    def env(self) -> dict[str, str]:
        """Of all processes."""
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        ray = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "60",
        }
        return inherited | ray | HEALTH | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | self._env

    def down(self) -> None:
        """All that it made is removed."""
        for node in self.nodes.values():
            self._end(node)
        self.nodes.clear()
        if self._switch is not None:
            self._switch.end()
        for helper in self._helpers:
            helper.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _address(self, number: int) -> str:
        return f"{NETWORK if self._is_isolated else LOOPBACK}.{number}"

    def _begin(self, number: int) -> Node:
        space = None
        if self._switch is not None:
            space = Space(self._switch, () if number == 1 else self._own_folders)
        node = Node(
            number=number, address=self._address(number), space=space, log=self.folder / f"start-{number}.log"
        )
        self.nodes[number] = node
        self._last = max(self._last, number)
        if space is not None:
            self._plug_in(node, space)
        where = [f"--address={self.address}"]
        if number == 1:
            where = ["--head", f"--port={self._port}", "--include-dashboard=false"]
        temporary = self.folder / f"n{number}"
        temporary.mkdir(exist_ok=True)
        storage = {"RAY_REDIS_ADDRESS": f"{STORE}:6379"} if self._storage and number == 1 else {}
        with node.log.open("wb") as log:
            node.raylet = subprocess.Popen(
                [*node.inside, RAY, "start", *where, "--block", "--disable-usage-stats"]
                + [f"--node-ip-address={node.address}", f"--temp-dir={temporary}"]
                + [f"--num-cpus={self._cpus[min(number, len(self._cpus)) - 1]}"]
                + [f"--object-store-memory={STORE_BYTES}"]
                + ([f"--labels={self._labels[number]}"] if number in self._labels else []),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self.env() | storage,
            )
        return node

    def _plug_in(self, node: Node, space: Space) -> None:
        assert self._switch is not None
        switch, link = self._switch, f"link{node.number}"
        with suppress(subprocess.CalledProcessError):
            switch.run("ip", "link", "del", link)  # of the node's last life: the kernel takes its time
        switch.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(space.pid))
        plug = link
        if (self._delay_s or self._loss) and node.number > 1:
            near, plug = f"near{node.number}", f"far{node.number}"
            switch.run("ip", "link", "add", near, "type", "veth", "peer", "name", plug)
            for device in (near, link, plug):
                switch.run("ip", "link", "set", device, "up")
            relay = [sys.executable, "-IS", str(HERE / "relay.py")]
            for each, device in ((space, "eth0"), (switch, near), (switch, link), (switch, plug)):
                each.run(*relay, "offloads-off", device)
            self._start_helper(*relay, link, near, str(self._delay_s), str(self._loss))
        switch.run("ip", "link", "set", plug, "master", "switch")
        for device in {link, plug}:
            switch.run("ip", "link", "set", device, "up")
        space.run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            space.run("ip", "link", "set", device, "up")

    def _wait_for(self, node: Node) -> None:
        assert node.raylet is not None
        patience = Patience(START_S)
        while "Ray runtime started" not in node.log.read_text():
            if node.raylet.poll() is not None or patience.is_over():
                raise RuntimeError(f"node {node.number} did not start: {node.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def _end(self, node: Node) -> None:
        if node.space is not None:
            node.space.end()
        for process in node.processes() if node.space is None else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for command in filter(None, [node.raylet, *node.commands]):
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.wait()

    def _set_link(self, node: Node, state: str) -> None:
        assert self._switch is not None, "a loopback cannot be cut"
        self._switch.run("ip", "link", "set", f"link{node.number}", state)

    def _start_storage(self) -> None:
        options = ["--bind", STORE, "--port", "6379", "--save", "", "--dir", str(self.folder)]
        log = str(self.folder / "redis.log")
        self._start_helper("redis-server", *options, "--protected-mode", "no", "--logfile", log)

    def _start_helper(self, *command: str) -> None:
        """Beside the nodes, on the switch's network; ends with it."""
        assert self._switch is not None
        helper = subprocess.Popen(
            [*self._switch.inside, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._helpers.append(helper)

    def _listed(self) -> list[list[str]]:
        answer = subprocess.run(
            [*self.head.inside, sys.executable, "-c", NODES_SCRIPT, self.address],
            check=True,
            capture_output=True,
            text=True,
            env=self.env(),
        )
        return [line.split() for line in answer.stdout.splitlines()]

    def _ray(self, *arguments: str) -> None:
        command = [*self.head.inside, RAY, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=self.env())
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")


def wait_until(
    happened: Callable[[], bool], timeout_s: float = 120.0, why_not: Callable[[], str] = str
) -> float:
    """Seconds until it was so. On a machine that others use it may take longer than `timeout_s`."""
    begun, patience = time.monotonic(), Patience(timeout_s)
    while not happened():
        assert not patience.is_over(), f"it never came true\n{why_not()}"
        time.sleep(0.05)
    return time.monotonic() - begun
