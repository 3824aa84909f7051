"""In agents, and in the simulated and the local cluster."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _side_by_side(original: Any) -> Any:
    def for_run(want: Any, known: Any, fence: int) -> Any:
        from msgspec.structs import replace

        newer = replace(known, runs=tuple(run for run in known.runs if run.token >= want.token))
        return original(want, newer, fence)

    return for_run


def _without_a_fence(original: Any) -> Any:
    return lambda want, known, fence: original(want, known, 0)


def _only_in_memory(_: Any) -> Any:
    def raise_to(self: Any, pod_key: str, token: int) -> None:
        self.tokens[pod_key] = max(self.tokens.get(pod_key, 0), token)

    return raise_to


def _orphans_go(original: Any) -> Any:
    def reconcile(wanted: Any, known: Any, fences: Any, pod_keys: Any) -> Any:
        from services.agent import reconcile as module

        keys = list(pod_keys)
        actions = original(wanted, known, fences, keys)
        for key in keys:
            runs = known.get(key, module.NOTHING_KNOWN)
            live = [run for run in runs.runs if run.kind in module.LIVE_KINDS]
            if key not in wanted and live:
                newest = max(run.token for run in live)
                if stop := module._stop(live, key, newest, module.SUPERSEDED_GRACE_SECONDS, runs):
                    actions[key] = stop
        return actions

    return reconcile


def _all_of_a_key(_: Any) -> Any:
    def of(self: Any, pod_key: str, up_to: int) -> Any:
        return [self._runs[pod_key, token] for token in sorted(self._by_key.get(pod_key, ()))]

    return of


def _last_word_counts(original: Any) -> Any:
    def ask_to_end(self: Any, run: Any, stop: Any) -> None:
        (run.folder.path / "stop.json").unlink(missing_ok=True)
        original(self, run, stop)

    return ask_to_end


def _ends_are_taken_back(original: Any) -> Any:
    def see_pod(self: Any, pod: Any) -> None:
        from msgspec.structs import replace

        from services.agent.backends.interface import LIVE_KINDS

        known = self._known.get(pod.pod_key)
        if known is not None:
            kept = tuple(run for run in known.runs if run.token != pod.token or run.kind in LIVE_KINDS)
            self._known[pod.pod_key] = replace(known, runs=kept)
        original(self, pod)

    return see_pod


def _let_live(original: Any) -> Any:
    def for_settled(want: Any, known: Any, fence: int) -> Any:
        from services.agent import reconcile as module

        return () if module._live(known.runs, up_to=want.token) else original(want, known, fence)

    return for_settled


def _shutdown_is_failure(original: Any) -> Any:
    def meaning(exit_file: Any) -> Any:
        if exit_file.kind is None and exit_file.stop is not None and exit_file.stop.kind == "interrupted":
            return "failed", "signal", exit_file.message
        return original(exit_file)

    return meaning


def _leaves_them(_: Any) -> Any:
    return lambda mark, session: 0


AGENTS: Final[list[Mutant]] = [
    Mutant(
        name="two-runs-side-by-side",
        function="services.agent.reconcile:_for_run",
        invariant="one run",
        bug="A newer run of a pod is started beside the older one.",
        make=_side_by_side,
    ),
    Mutant(
        name="no-fence-for-late-words",
        function="services.agent.reconcile:_for_run",
        invariant="one run",
        bug="A run is started that is older than the newest run of its pod.",
        make=_without_a_fence,
    ),
    Mutant(
        name="fences-die-with-the-agent",
        function="services.agent.backends.local.files:Fences.raise_to",
        invariant="one run",
        bug="The fences of the local cluster are not stored, and are lost when its agent restarts.",
        make=_only_in_memory,
    ),
    Mutant(
        name="orphans-are-ended",
        function="services.agent.reconcile:reconcile",
        invariant="wanted",
        bug="An agent ends runs that WANTED does not mention, instead of only reporting them.",
        make=_orphans_go,
    ),
    Mutant(
        name="newer-runs-go-too",
        function="services.agent.backends.simulated:SimulatedBackend._of",
        invariant="wanted",
        bug="On a simulated cluster, ending a run also ends newer runs of its pod.",
        make=_all_of_a_key,
    ),
    Mutant(
        name="who-asks-last-decides",
        function="services.agent.backends.local.shims:Shims.ask_to_end",
        invariant="wanted",
        bug="On the local cluster, a second request to end takes the place of the first: it can lengthen the time, and "
        "changes what the end counts as.",
        make=_last_word_counts,
    ),
    Mutant(
        name="ends-are-taken-back",
        function="services.agent.agent:Agent._see_pod",
        invariant="facts",
        bug="A watch that lags can take back a run's end.",
        make=_ends_are_taken_back,
    ),
    Mutant(
        name="what-came-back-lives-on",
        function="services.agent.reconcile:_for_settled",
        invariant="life",
        bug="A live run that has ended according to the log is not ended.",
        make=_let_live,
    ),
    Mutant(
        name="shutdowns-are-failures",
        function="services.agent.backends.local.run_folder:_meaning",
        invariant="completions",
        bug="A run of the local cluster that a shutdown ended counts as failed.",
        make=_shutdown_is_failure,
    ),
    Mutant(
        name="leftovers-live-on",
        function="services.agent.backends.local.leftovers:kill_left",
        invariant="released",
        bug="If the watcher of a run dies, the processes of the run keep running after it is reported as ended.",
        make=_leaves_them,
    ),
]
