"""The arithmetic of GRPO a second time: the slope of the loss along every token's log-probability, from the papers.

Plain float64 numpy, one loop an index, closed forms instead of autograd.  It shares no code with
:mod:`levelhead.objective` and :mod:`levelhead.training`, which :mod:`oracle.objective` holds against it.

- :mod:`.records`: what goes in and comes out;
- :mod:`.rewards`: shaping of rewards, and the charge for leaving the reference;
- :mod:`.estimators`: rewards to advantages;
- :mod:`.surrogates`: slope of the policy loss, and importance weights;
- :mod:`.book`: masks, means, KL, entropy and controllers, put together for an update;
- :mod:`.merge`: weights of the tasks' gradients.
"""

from oracle.textbook.book import Book
from oracle.textbook.records import Answer, Attempt, Problem, Settings, Slopes, TaskSettings, UnprovedError

__all__ = ["Answer", "Attempt", "Book", "Problem", "Settings", "Slopes", "TaskSettings", "UnprovedError"]
