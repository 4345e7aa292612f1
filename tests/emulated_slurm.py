"""A real Slurm on this machine: munged, slurmctld and eight slurmd, all on the loopback address.

Every node has its own host name and its own mounts, so that a folder can be visible to the nodes
or hidden from them. It has a private configuration, key and set of ports, and every daemon is ended
by its process id.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

NODES = [f"node{number}" for number in range(1, 9)]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")

# JobRequeue=0 is what some sites have: what is queued again must ask for it.
SLURM_CONF = """\
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
InactiveLimit=0
KillWait=30
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout=300
JobRequeue=0
GresTypes=gpu
{nodes}
PartitionName=cpu Nodes=node[1-8] Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
"""
NODE = (
    "NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4000 Gres=gpu:4 "
    "State=UNKNOWN"
)


def missing() -> str:
    """Why no Slurm can run here; empty if one can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd needs root"
    if subprocess.run(["unshare", "-u", "-m", "true"], capture_output=True).returncode:
        return "this machine does not allow namespaces"
    return ""


class EmulatedSlurm:
    """Eight nodes of 16 cores and 4 pretended GPUs each.

    Attributes:
        hidden: a folder of which every node sees only its own, empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hidden = folder / "hidden"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("run", "log", "state", "spool", "hidden"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        for number in range(4):  # device files that exist are all that Slurm asks for
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        controller_port, *ports = _free_ports(1 + len(NODES))
        lines = [NODE.format(name=name, port=port) for name, port in zip(NODES, ports, strict=True)]
        self.config.write_text(
            SLURM_CONF.format(
                folder=self.folder,
                host=socket.gethostname().partition(".")[0],
                controller_port=controller_port,
                nodes="\n".join(lines),
            )
        )
        gres = f"NodeName=node[1-8] Name=gpu File={self.folder}/gpu[0-3]\n"
        (self.folder / "gres.conf").write_text(gres)
        run, log = self.folder / "run", self.folder / "log"
        self._start(
            *("munged", "munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid"),
            *(f"--log-file={log}/munged.log", f"--seed-file={run}/seed"),
        )
        wait_until((run / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for name in NODES:
            self.start_node(name)
        wait_until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "8")

    def start_node(self, name: str) -> None:
        hide = f"mount -t tmpfs tmpfs '{self.hidden}'"
        shell = f"hostname {name} && {hide} && exec slurmd -D -N {name}"
        self._start(name, "unshare", "-u", "-m", "--propagation", "private", "sh", "-c", shell)

    def kill_node(self, name: str) -> None:
        """As if its power had failed: the daemon and all that it had started.

        The controller needs minutes to notice it, and is told.
        """
        self._end_node(name)
        self.daemons.pop(name).wait()
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed")

    def _end_node(self, name: str) -> None:
        """Kill all processes of a node: those that could report the death of others first."""
        node = _namespace(self.daemons[name].pid)
        found = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        for pid in sorted((pid for pid in found if _namespace(pid) == node), key=_is_work):
            _kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        for name in self.daemons.keys() & set(NODES):
            self._end_node(name)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.config)}

    def run(self, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """What a program of Slurm prints."""
        environment = {**self.environment, **(variables or {})}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    def states(self, job: str) -> dict[str, str]:
        """Task of a job -> its state, such as RUNNING."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def start_now(self, task: str, has_started: Callable[[], bool]) -> None:
        """Do not wait for the two minutes that Slurm holds a requeued task for.

        Slurm refuses as long as the task's last start is being cleared up.
        """

        def ask() -> bool:
            self.run("scontrol", "update", f"jobid={task}", "StartTime=now")
            return has_started()

        wait_until(ask)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )


@contextmanager
def emulated_slurm(folder: Path) -> Iterator[EmulatedSlurm]:
    cluster = EmulatedSlurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait_until(is_so: Callable[[], bool], seconds: float = 240.0) -> None:
    """Fails if it takes longer."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not so after {seconds:.0f} s"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _namespace(pid: int) -> str:
    """Of the host name, which all processes of a node share; empty if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")
    except OSError:
        return ""


def _is_work(pid: int) -> bool:
    try:
        return "slurm" not in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
