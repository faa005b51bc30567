"""How rmw_zenoh names topics, announces nodes, and marks messages.

rmw_zenoh is the ROS 2 middleware over zenoh. A topic is the key
`DOMAIN/topic/type on the wire/type hash`; nodes, publishers, subscriptions and services announce
themselves by liveliness tokens; every message carries an attachment.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

import xxhash

from navrl.deploy.ros.interfaces import dds_name
from navrl.deploy.ros.type_hash import type_hash
from navrl.errors import ConfigError, MessageError

GID = 16  # bytes
# Default quality of service, reliable and volatile, with a history of ten.
QOS = "::,10:,:,:,,"
# The attachment of each distribution. Jazzy changed it while it was out: builds up to the end of
# 2024 name the fields, later ones, Kilted and Rolling do not.
ATTACHMENTS = {"jazzy": "plain", "kilted": "plain", "rolling": "plain", "jazzy-2024": "named"}
NAMES = ("sequence_number", "source_timestamp", "source_gid")


def topic_key(domain: int, topic: str, kind: str, *, any_hash: bool = False) -> str:
    """Return the key of a topic or service; `any_hash` matches all versions of its type."""
    version = "*" if any_hash else type_hash(kind)
    return f"{domain}/{topic.strip('/')}/{dds_name(kind)}/{version}"


def token_key(
    domain: int, session: str, number: int, entity: str, node: str, topic: str = "", kind: str = ""
) -> str:
    """Return the key of a liveliness token.

    Args:
        domain: ROS_DOMAIN_ID.
        session: the zenoh session's id.
        number: of the entity, unique in the session.
        entity: NN for a node, MP publisher, MS subscription, SS service server, SC client.
        node: its name.
        topic: its topic or service, unless it is a node.
        kind: the type of the topic.
    """
    key = f"@ros2_lv/{domain}/{session}/0/{number}/{entity}/%/%/{node}"
    if topic:
        mangled = topic.replace("/", "%")
        key += f"/{mangled}/{dds_name(kind)}/{type_hash(kind)}/{QOS}"
    return key


def gid_of(token: str) -> bytes:
    """Return the id that rmw_zenoh derives from a liveliness token."""
    return xxhash.xxh3_128_intdigest(token.encode()).to_bytes(GID, "little")


@dataclass(frozen=True)
class Attachment:
    """What rmw_zenoh attaches to a message, a request and a reply."""

    sequence: int
    stamp_ns: int
    gid: bytes

    @classmethod
    def now(cls, sequence: int, gid: bytes) -> Attachment:
        """Return the attachment of something that is sent now."""
        return cls(sequence, time.time_ns(), gid)

    def encode(self, style: str = "plain") -> bytes:
        """Return the bytes; `named` puts each field's name before it."""
        parts = (
            struct.pack("<q", self.sequence),
            struct.pack("<q", self.stamp_ns),
            bytes([GID]) + self.gid,
        )
        if style == "plain":
            return b"".join(parts)
        names = [bytes([len(name)]) + name.encode() for name in NAMES]
        return b"".join(name + part for name, part in zip(names, parts, strict=True))

    @classmethod
    def decode(cls, data: bytes) -> Attachment:
        """Return the attachment that bytes of either style hold.

        Raises:
            MessageError: they hold none.
        """
        plain = struct.Struct(f"<qqB{GID}s")
        for name in NAMES:
            data = data.replace(bytes([len(name)]) + name.encode(), b"", 1)
        if len(data) != plain.size:
            raise MessageError(f"an attachment has {len(data)} bytes; expected {plain.size}")
        sequence, stamp, _, gid = plain.unpack(data)
        return cls(sequence, stamp, gid)


def attachment_style(distribution: str) -> str:
    """Return how a ROS 2 distribution writes attachments.

    Raises:
        ConfigError: rmw_zenoh is not known to speak so in that distribution.
    """
    style = ATTACHMENTS.get(distribution)
    if style is None:
        raise ConfigError(
            f"the distribution is {distribution!r}; expected one of {', '.join(ATTACHMENTS)}"
        )
    return style
