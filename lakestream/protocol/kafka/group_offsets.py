"""A group's committed offsets: OffsetCommit (2-10), OffsetFetch (1-10), OffsetDelete (0).

Departures from Kafka: none is known. As in Kafka a fetch by name answers -1 where nothing is committed, also for an
unknown group or topic; names and ids of topics are resolved by the broker that is asked.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from lakestream.errors import LakestreamError
from lakestream.model.groups.group import CommittedOffset
from lakestream.model.groups.offsets import CommitOffsets, CommitRow, DeleteOffsets
from lakestream.model.reasons import Reason
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from lakestream.protocol.kafka.refusals import refusal
from lakestream.stream.long_work import chunks
from lakestream.stream.streams import FrontDoor

NOT_COMMITTED = ErrorCode.COORDINATOR_NOT_AVAILABLE
NOT_KNOWN_NOW = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""The one code for "ask again" that all consumers understand as an answer to OffsetFetch."""
NOTE_TOO_LARGE = code_of(Reason.NOTE_TOO_LARGE)
BY_ID = 10
"""From this version on topics are named by their ids."""
NOTHING = CommittedOffset(-1, -1, "", 0, 0)

AskedCommit = tuple[OffsetCommitRequestTopic, OffsetCommitRequestPartition]


class GroupOffsetApis:
    """`note_max_bytes` is the longest note that a client may commit with an offset."""

    def __init__(self, streams: FrontDoor, note_max_bytes: int) -> None:
        self._streams = streams
        self._offsets = streams.offsets
        self._note_max_bytes = note_max_bytes

    def handlers(self) -> dict[int, Handler]:
        return {8: self.commit, 9: self.fetch, 47: self.delete}

    # -- commit -------------------------------------------------------------------------------------------------------

    async def commit(self, context: RequestContext, request: OffsetCommitRequest) -> object:
        """Partitions are refused one by one; a refusal of the group is the answer for all other partitions."""
        by_id = context.version >= BY_ID
        asked = [(topic, partition) for topic in request.topics for partition in topic.partitions]
        codes = [ErrorCode.NONE] * len(asked)
        try:
            judged = await self._judge_current(asked, by_id)
            rows = [(at, row) for at, row in enumerate(judged) if isinstance(row, tuple)]
            codes = [ErrorCode.NONE if isinstance(row, tuple) else row for row in judged]
            if rows or NOTE_TOO_LARGE in codes:
                body = CommitOffsets(
                    request.group_id,
                    request.generation_id_or_member_epoch,
                    request.member_id,
                    request.group_instance_id,
                    [row for _, row in rows],
                    request.retention_time_ms,
                )
                for (at, _), reason in zip(rows, await self._offsets.commit(body), strict=True):
                    codes[at] = code_of(reason)
        except LakestreamError as error:
            failed = refusal(error, NOT_COMMITTED).code
            if failed == ErrorCode.ILLEGAL_GENERATION and context.version >= 9 and not self._knows(request.group_id):
                failed = ErrorCode.GROUP_ID_NOT_FOUND
            codes = [failed if code in (ErrorCode.NONE, NOTE_TOO_LARGE) else code for code in codes]
        answers = iter(codes)
        response = OffsetCommitResponse(topics=[await _committed(topic, answers) for topic in request.topics])
        return await large_answer(context, response, len(asked))

    def _judge_commit(
        self, asked: OffsetCommitRequestTopic, partition: OffsetCommitRequestPartition, by_id: bool
    ) -> CommitRow | ErrorCode:
        note = partition.committed_metadata or ""
        topic = self._streams.topic(asked.topic_id if by_id else asked.name)
        if topic is None and by_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None or not 0 <= partition.partition_index < len(topic.streams):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(note) > self._note_max_bytes:
            return NOTE_TOO_LARGE
        stream = topic.streams[partition.partition_index]
        return stream, partition.committed_offset, partition.committed_leader_epoch, note

    def _knows(self, group: str) -> bool:
        return group in self._streams.state.groups.by_name

    async def _judge_current(self, asked: list[AskedCommit], by_id: bool) -> list[CommitRow | ErrorCode]:
        """Judge; if a topic is missing, judge once more after folding to the end of the log (L6)."""
        judged = await self._judge(asked, by_id)
        unknown = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if any(isinstance(row, ErrorCode) and row in unknown for row in judged):
            await self._streams.catch_up()
            judged = await self._judge(asked, by_id)
        return judged

    async def _judge(self, asked: list[AskedCommit], by_id: bool) -> list[CommitRow | ErrorCode]:
        judged: list[CommitRow | ErrorCode] = []
        for some in chunks(asked, ITEMS_AT_ONCE):
            judged += [self._judge_commit(topic, one, by_id) for topic, one in some]
            if len(some) == ITEMS_AT_ONCE:
                await asyncio.sleep(0)
        return judged

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def fetch(self, context: RequestContext, request: OffsetFetchRequest) -> object:
        if context.version >= 8:
            groups = [await self._fetch(one.group_id, one.topics, context.version) for one in request.groups]
            return await large_answer(context, OffsetFetchResponse(groups=groups), sum(map(_length, groups)))
        answer = await self._fetch(request.group_id, request.topics, context.version)
        response = OffsetFetchResponse(topics=answer.topics, error_code=answer.error_code)
        return await large_answer(context, response, _length(answer))

    async def _fetch(
        self, group: str, topics: list[OffsetFetchRequestTopic] | None, version: int
    ) -> OffsetFetchResponseGroup:
        try:
            commits = await self._offsets.fetch(group)
        except LakestreamError as error:
            code = refusal(error, NOT_KNOWN_NOW).code
            # Before version 2 an answer has no place for a code but its partitions.
            failed = [await self._answer(topic, lambda _: code) for topic in topics or []] if version < 2 else []
            return OffsetFetchResponseGroup(group_id=group, error_code=code, topics=failed)
        if topics is None:
            return OffsetFetchResponseGroup(group_id=group, topics=await self._everything(commits))
        return OffsetFetchResponseGroup(
            group_id=group, topics=[await self._some(topic, commits, version >= BY_ID) for topic in topics]
        )

    async def _everything(self, commits: dict[int, CommittedOffset]) -> list[OffsetFetchResponseTopic]:
        streams = self._streams.state.streams.by_id
        topics: dict[bytes, OffsetFetchResponseTopic] = {}
        for number, (stream_id, commit) in enumerate(list(commits.items()), 1):
            if number % ITEMS_AT_ONCE == 0:
                await asyncio.sleep(0)
            stream = streams.get(stream_id)
            if stream is None:
                continue  # of a deleted topic, about to be forgotten
            topic = topics.setdefault(
                stream.topic.id, OffsetFetchResponseTopic(name=stream.topic.name, topic_id=stream.topic.id)
            )
            topic.partitions.append(offset_answer(stream.partition, commit))
        return list(topics.values())

    async def _some(
        self, asked: OffsetFetchRequestTopic, commits: dict[int, CommittedOffset], by_id: bool
    ) -> OffsetFetchResponseTopic:
        topic = self._streams.topic(asked.topic_id if by_id else asked.name)
        streams = topic.streams if topic is not None else []

        def found(partition: int) -> CommittedOffset | ErrorCode:
            if topic is None and by_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
            known = 0 <= partition < len(streams)
            return commits.get(streams[partition], NOTHING) if known else NOTHING

        return await self._answer(asked, found)

    async def _answer(
        self, asked: OffsetFetchRequestTopic, found: Callable[[int], CommittedOffset | ErrorCode]
    ) -> OffsetFetchResponseTopic:
        answer = OffsetFetchResponseTopic(name=asked.name, topic_id=asked.topic_id)
        for some in chunks(asked.partition_indexes, ITEMS_AT_ONCE):
            answer.partitions += [offset_answer(partition, found(partition)) for partition in some]
            if len(some) == ITEMS_AT_ONCE:
                await asyncio.sleep(0)
        return answer

    # -- delete -------------------------------------------------------------------------------------------------------

    async def delete(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        asked = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
        try:
            if any(self._stream(*one) is None for one in asked):
                await self._streams.catch_up()
            streams = [self._stream(*one) for one in asked]
            known = [stream for stream in streams if stream is not None]
            deleted = dict(
                zip(known, await self._offsets.delete_offsets(DeleteOffsets(request.group_id, known)), strict=True)
            )
        except LakestreamError as error:
            return OffsetDeleteResponse(error_code=refusal(error, NOT_COMMITTED).code)
        codes = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if stream is None else code_of(deleted[stream]) for stream in streams
        )
        return OffsetDeleteResponse(topics=delete_answers(request, codes))

    def _stream(self, name: str, partition: int) -> int | None:
        stream = self._streams.stream(name, partition)
        return stream.id if stream is not None else None


async def _committed(asked: OffsetCommitRequestTopic, codes: Iterator[ErrorCode]) -> OffsetCommitResponseTopic:
    answer = OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id)
    for some in chunks(asked.partitions, ITEMS_AT_ONCE):
        answer.partitions += [
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=next(codes)) for one in some
        ]
        if len(some) == ITEMS_AT_ONCE:
            await asyncio.sleep(0)
    return answer


def _length(answer: OffsetFetchResponseGroup) -> int:
    return sum(len(topic.partitions) for topic in answer.topics)


def offset_answer(partition: int, found: CommittedOffset | ErrorCode) -> OffsetFetchResponsePartition:
    commit, code = (NOTHING, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=commit.offset,
        committed_leader_epoch=commit.leader_epoch,
        metadata=commit.note,
        error_code=code,
    )


def delete_answers(request: OffsetDeleteRequest, codes: Iterable[ErrorCode]) -> list[OffsetDeleteResponseTopic]:
    each = iter(codes)
    return [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=next(each))
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
