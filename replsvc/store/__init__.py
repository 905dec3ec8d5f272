"""The event log and what is derived from it.

`EventLog` is the door; the modules behind it are the log's own. SQLAlchemy is imported when a log
is opened, in a worker thread, not before.
"""

from replsvc.store.feed import Feed, Follower
from replsvc.store.log import EventLog
from replsvc.store.output import OutputReader
from replsvc.store.pending import Pending
from replsvc.store.records import SessionRecord

__all__ = ["EventLog", "Feed", "Follower", "OutputReader", "Pending", "SessionRecord"]
