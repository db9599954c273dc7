"""Processes that train together: who writes, and whether all mean the same run."""

import socket

from helpers.engine.checks import expect


class ProcessGroup:
    """A single process; subclasses say how objects go from one ``rank`` to all."""

    rank, size = 0, 1

    def value_in(self, rank, x):
        """The value of ``x`` in one process, in every process."""
        return x

    def all_gather(self, x):
        """The values of ``x`` in all processes: a list."""
        return [self.value_in(rank, x) for rank in range(self.size)]

    def broadcast(self, make):
        """What a function returns, or raises, in the first process, in every process."""
        found = result_or_error(make) if self.rank == 0 else None
        result, error = self.value_in(0, found)
        if error is not None:
            raise error
        return result

    def check_same(self, about):
        """Raise ValueError in every process if ``about``, texts by name, differs in one."""
        (first, theirs), *others = self.all_gather((socket.gethostname(), about))
        for rank, (name, found) in enumerate(others, start=1):
            keys = sorted(found.keys() | theirs.keys())
            differ = [key for key in keys if found.get(key) != theirs.get(key)]
            got = f"another {' and another '.join(differ)} in process {rank} on {name}"
            got += f" than in process 0 on {first}"
            expect(not differ, "the same training in all processes", got)


def result_or_error(make):
    """What a function returns, and what it raises: one of both is None."""
    try:
        return make(), None
    except Exception as error:
        return None, error
