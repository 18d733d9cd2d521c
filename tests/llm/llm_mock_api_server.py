"""llm-mock-api with rules from a file: its own rule files know no errors.

Usage: llm_mock_api_server.py PORT RULES, where RULES holds {"<model>": [{"text", "reasoning", "tools", "error"}]}.
"""

import asyncio
import json
import re
import sys

from llm_mock_api import MockServer, MockServerOptions
from llm_mock_api.types.reply import ErrorReply, ReplyObject, ToolCall
from llm_mock_api.types.rule import MatchObject


def reply(raw: dict) -> ReplyObject:
    return ReplyObject(
        text=raw.get("text"),
        reasoning=raw.get("reasoning"),
        tools=[ToolCall(name=tool["name"], args=tool["args"]) for tool in raw.get("tools", [])] or None,
        error=ErrorReply(**raw["error"]) if "error" in raw else None,
    )


async def main(port: int, path: str) -> None:
    server = MockServer(MockServerOptions(port=port, host="127.0.0.1"))
    with open(path, encoding="utf-8") as file:
        rules = json.load(file)
    for model, replies in rules.items():
        exactly = re.compile(f"^{re.escape(model)}$")
        server.when(MatchObject(model=exactly)).reply_sequence([reply(raw) for raw in replies])
    await server.run_until_shutdown()


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
