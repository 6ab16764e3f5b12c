"""Why the work on a topic's table was not done: a value, since the other topics of a round go on."""

import msgspec


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A topic's part could not be done. `lasting`: the cause does not pass by itself, so the operator should know."""

    topic_id: bytes
    reason: str
    lasting: bool
