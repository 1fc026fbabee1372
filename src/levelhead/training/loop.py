"""One long-lived event loop for everything asynchronous: rewards, judges, environments."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Executor, Future
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

from levelhead.tasks import main_thread

T = TypeVar("T")


class WaitInterruptedError(KeyboardInterrupt):
    """The first interrupt came while scores were waited for: the step is given up, and what was before it stands."""


class Waiter(Executor):
    """Runs what it is given in whichever thread waits for a coroutine, which has nothing else to do.

    Torch keeps a pool of threads for each thread that computes, and two pools crowd the cores.
    """

    def __init__(self) -> None:
        # No lock is held anywhere: an interrupt may come between any two lines.
        self._jobs: deque[Callable[[], None]] = deque()
        self._main_jobs: deque[Callable[[], None]] = deque()
        self._bells: list[SimpleQueue[None]] = []

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """Hand work to the thread that waits, or will wait next."""
        return self._submit(self._jobs, lambda: work(*args, **options))

    def submit_to_main(self, work: Callable[[], T]) -> Future[T]:
        """Hand work to the main thread, for when it waits."""
        return self._submit(self._main_jobs, work)

    def _submit(self, jobs: deque[Callable[[], None]], work: Callable[[], T]) -> Future[T]:
        result: Future[T] = Future()

        def job() -> None:
            try:
                if result.set_running_or_notify_cancel():
                    result.set_result(work())
            except BaseException as error:
                interrupted = not isinstance(error, Exception)  # the thread that waits was, not the work
                result.set_exception(CancelledError() if interrupted else error)
                if interrupted:
                    raise

        jobs.append(job)
        for bell in tuple(self._bells):
            bell.put(None)
        return result

    def serve(self, until: Future[Any]) -> None:
        """Run what is given, in this thread, until something else is done."""
        bell: SimpleQueue[None] = SimpleQueue()
        self._bells.append(bell)
        in_main_thread = threading.current_thread() is threading.main_thread()
        queues = (self._main_jobs, self._jobs) if in_main_thread else (self._jobs,)
        until.add_done_callback(lambda _: bell.put(None))
        try:
            while not until.done():
                waiting = next((jobs for jobs in queues if jobs), None)
                if waiting is None:
                    bell.get()
                    continue
                try:
                    job = waiting.popleft()
                except IndexError:  # another thread was quicker
                    continue
                job()
        finally:
            self._bells.remove(bell)


class EventLoop:
    """An event loop in a background thread; every coroutine of a run is awaited on it, from any thread."""

    def __init__(self) -> None:
        self._awaited = False
        self._giving_up = 0
        self.waiter = Waiter()
        """Runs what it is given in a thread that waits for this loop."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="levelhead-loop", daemon=True)
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            main_thread.register(self._loop, self.waiter.submit_to_main)

    @property
    def gives_up(self) -> bool:
        """Whether the main thread waits for something that an interrupt may end at once."""
        return self._awaited and self._giving_up > 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            self.wait(future)
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; the result may be waited for, or the future cancelled."""
        return asyncio.run_coroutine_threadsafe(_contained(coroutine), self._loop)

    def wait(self, future: Future[Any]) -> None:
        """Wait until what :meth:`submit` began has ended, and do meanwhile what is handed to :attr:`waiter`.

        An interrupt ends the wait alone.
        """
        if threading.current_thread() is not threading.main_thread():
            self.waiter.serve(future)
            return
        self._awaited = True
        try:
            self.waiter.serve(future)
        finally:
            self._awaited = False

    @contextlib.contextmanager
    def giving_up(self) -> Iterator[None]:
        """Inside, the first interrupt ends the main thread's wait for this loop; see :attr:`gives_up`."""
        self._giving_up += 1
        try:
            yield
        finally:
            self._giving_up -= 1

    def close(self) -> None:
        """Stop the loop and its thread, what still runs there being cancelled."""
        with contextlib.suppress(Exception):
            self.submit(_cancel_all()).result(timeout=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; a ``SystemExit`` in it does not end the loop, for which others wait too.

    Raises:
        RuntimeError: It asked to end the program.
    """
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__} was raised where scores or pages are waited for") from error


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1)


class Interrupts:
    """What Ctrl-C and ``SIGTERM`` do to a run.

    The first ends it after its step, or at once where scores are waited for; the second ends it at once.

    Args:
        loop: Knows what the main thread waits for.
        waits: Whether even that is waited for, as where other processes wait for this one.

    Attributes:
        came: Whether there has been one.
    """

    def __init__(self, loop: EventLoop, *, waits: bool = False) -> None:
        self.came = False
        self._loop, self._waits = loop, waits

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Take signals inside; those of other threads than the main one are left as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        if self._loop.gives_up and not self._waits:
            raise WaitInterruptedError
