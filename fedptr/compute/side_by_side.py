"""The cohort's visits several at once, in threads of this process, with the results of one after another.

Each client has a thread, and computes on one core; when fewer clients are left than there are cores, those that are
left share all of them. A visit is pure, and whoever is done first, results are taken in client order: the first failure
in that order stops the run. Later clients than a failed one are not started, or end with their next gradient.

PyTorch's global generator belongs to all threads. A cohort that draws from it (dropout) is visited once more, one
client after another with a seed for each, and so are all later ones.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from fedptr.compute.together import visit_together
from fedptr.core.method import Method, Site
from fedptr.core.randomness import watch_global_generator
from fedptr.core.task import Company, ModelTask
from fedptr.core.visit import Request, Visit, VisitCohort, VisitResults, visit_and_check, visit_in_process
from fedptr.errors import ClientError
from fedptr.messages import print_notice
from fedptr.types import State


class VisitStopped(BaseException):  # not an Exception: no hook may take it for a failure of its own
    """Raised in a thread whose visit nobody waits for any more."""


class SideBySide:
    """A `VisitCohort` for up to this many clients at once."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.alone = at_once, False
        self.threads = concurrent.futures.ThreadPoolExecutor(at_once, "fedptr-client")
        self.own = threading.local()  # of every thread, its task

    def __call__(
        self, method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site], tolerant: bool
    ) -> VisitResults:
        """See `visit_in_process`."""
        if self.alone or len(sites) == 1:
            return visit_in_process(method, request, states, sites, tolerant)
        cohort = Cohort(sites, tolerant, self.at_once)

        def visit(i: int) -> Visit:
            return visit_and_check(method, request, states, self.at_home(sites[i], cohort), i)

        def work() -> None:
            while (i := cohort.begin()) is not None:
                with contextlib.suppress(VisitStopped):
                    try:
                        cohort.end(i, visit(i))
                    except Exception as error:
                        cohort.end(i, error)

        with watch_global_generator() as watch:
            self.run_threads(work, cohort)
        if watch.used:
            self.alone = True
            print_notice("clients train one after another, as they draw from PyTorch's global generator (dropout)")
            return visit_in_process(method, request, states, sites, tolerant)
        return cohort.results()

    def at_home(self, site: Site, cohort: Cohort) -> Site:
        """The site with this thread's task."""
        if not isinstance(site.task, ModelTask):
            return site
        known = getattr(self.own, "task", None)
        if known is None or known[0] is not site.task:
            self.own.task = known = site.task, site.task.for_another_thread()
        known[1].join(cohort)
        return replace(site, task=known[1])

    def run_threads(self, work: Callable[[], None], cohort: Cohort) -> None:
        """Returns when all threads are done; what interrupts the wait for them stops them."""
        working: list[concurrent.futures.Future[None]] = []
        try:
            for _ in range(min(self.at_once, len(cohort.sites))):
                working.append(self.threads.submit(work))
            concurrent.futures.wait(working)
        except BaseException:  # a second Ctrl-C
            cohort.stop()
            concurrent.futures.wait(working)
            raise
        finally:
            cohort.clients = 1
        for thread in working:
            thread.result()

    def close(self) -> None:
        self.threads.shutdown()


class Cohort(Company):
    """The visits of a request: who waits, who is visited, what came of it. Shared by the threads."""

    def __init__(self, sites: Mapping[int, Site], tolerant: bool, at_once: int) -> None:
        self.sites, self.tolerant, self.at_once = sites, tolerant, at_once
        # The largest first, so that at the end no thread is left with one alone.
        self.waiting = collections.deque(sorted(sites, key=lambda i: -sites[i].size))
        self.place = {i: place for place, i in enumerate(sites)}
        self.busy: dict[int, int] = {}  # client -> its thread
        self.unwanted: set[int] = set()  # threads
        self.found: dict[int, Visit | Exception] = {}
        self.lock = threading.Lock()

    def check(self) -> None:
        if threading.get_ident() in self.unwanted:
            raise VisitStopped

    def begin(self) -> int | None:
        """The next client for this thread."""
        with self.lock:
            self.unwanted.discard(threading.get_ident())
            if not self.waiting:
                return None
            i = self.waiting.popleft()
            self.busy[i] = threading.get_ident()
            self.count()
            return i

    def end(self, i: int, result: Visit | Exception) -> None:
        with self.lock:
            self.busy.pop(i, None)
            self.found[i] = result
            if self.is_fatal(result):  # clients before it may still fail, and then their failure counts
                self.stop_after(self.place[i])
            self.count()

    def count(self) -> None:
        """How many clients compute at a time from now on."""
        self.clients = max(1, min(self.at_once, len(self.busy) + len(self.waiting)))

    def is_fatal(self, result: Visit | Exception) -> bool:
        return isinstance(result, Exception) and not (self.tolerant and isinstance(result, ClientError))

    def stop_after(self, place: int) -> None:
        """Nobody waits for the clients after this place any more."""
        self.waiting = collections.deque(i for i in self.waiting if self.place[i] < place)
        for i in [i for i in self.busy if self.place[i] > place]:
            self.unwanted.add(self.busy.pop(i))

    def stop(self) -> None:
        with self.lock:
            self.stop_after(-1)

    def results(self) -> VisitResults:
        """What `visit_in_process` returns or raises."""
        visits, dropped = dict[int, Visit](), dict[int, str]()
        for i in self.sites:
            result = self.found[i]
            if isinstance(result, Visit):
                visits[i] = result
            elif self.is_fatal(result):
                raise result
            else:
                dropped[i] = str(result)
        return visits, dropped


@contextlib.contextmanager
def open_visits(at_once: int) -> Iterator[VisitCohort]:
    """How clients visit in this process, with this many at once."""
    if at_once == 1:
        yield visit_together
    else:
        with contextlib.closing(SideBySide(at_once)) as visits:
            yield visits
