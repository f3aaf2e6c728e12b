"""`wirewise mcp`: commands as tools of the Model Context Protocol, for coding agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import wirewise
from wirewise.cli.tools import Bounds, run_tool, tools
from wirewise.errors import InputError
from wirewise.extras import import_extra
from wirewise.units import parse_size

__all__ = ["serve"]


def serve(folder: Path, seconds: float, memory: str) -> None:
    """Serve requests on stdin and stdout until they close.

    Args:
        folder: Folder that the tools read and write.
        seconds: Time limit of a call, in seconds.
        memory: Memory limit of a call, such as 8GiB.

    Raises:
        InputError: The folder does not exist, or the package `mcp` is not installed.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; expected the one that holds traces, plans and topologies")
    bounds = Bounds(folder.resolve(), seconds, int(parse_size(memory)))
    import_extra("mcp", "mcp", "a server of tools")
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    known = tools()

    async def listed(context: Any, options: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=one.help, input_schema=one.schema)
                for name, one in known.items()
            ]
        )

    async def called(context: Any, options: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if options.name not in known:
                raise InputError(f"got the tool {options.name!r}; expected one of: {', '.join(known)}")
            text, found = await run_tool(known[options.name], options.arguments or {}, bounds)
        except InputError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=found)

    async def answer() -> None:
        server: Server[Any] = Server(
            "wirewise", version=wirewise.__version__, on_list_tools=listed, on_call_tool=called
        )
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())

    asyncio.run(answer())
