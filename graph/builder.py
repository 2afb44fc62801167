"""The agent as a compiled graph."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import tools_condition

from graph.context import TurnContext
from graph.lru import Lru
from graph.nodes import call_model, tool_node
from graph.state import AgentState
from graph.tool_set import ToolSet
from schemas.tool import Tool

AgentGraph = CompiledStateGraph[AgentState, TurnContext, AgentState, AgentState]

#: Graphs a process remembers. They hold the names of tools and nothing of any job, tenant or key.
MAX_GRAPHS = 128

_graphs: Lru[AgentGraph] = Lru(MAX_GRAPHS)
_graphs_lock = threading.Lock()


class GraphBuilder:
    """Builds the graph of an agent with some tools: `agent` asks the model, `tools` runs what it asks for, and so on.

    The tools may be given as such or with the context of an answer. Graphs are compiled once for the same tools.
    """

    def __init__(self, *, tools: Sequence[Tool] = (), context: TurnContext | None = None) -> None:
        self.tool_set = ToolSet.of(context.tools if context is not None else tools)

    def buildgraph(self) -> AgentGraph:
        """The compiled graph. Run it with a TurnContext and a recursion limit: LangGraph's own is 10,007."""
        with _graphs_lock:
            return _graphs.get(self.tool_set.key, self._compile)

    def __call__(self) -> AgentGraph:
        return self.buildgraph()

    def _compile(self) -> AgentGraph:
        graph: StateGraph[AgentState, TurnContext, AgentState, AgentState] = StateGraph(
            AgentState, context_schema=TurnContext
        )
        graph.add_node("agent", call_model)
        graph.add_node("tools", tool_node(self.tool_set.names))
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", _next_step, {"tools": "tools", END: END})
        graph.add_edge("tools", "agent")
        return graph.compile()


async def _next_step(state: AgentState) -> Any:
    """To the tools if the last message asks for any. Asynchronous, or LangGraph would ask on a thread.

    Calls that could not be read are among them (see AgentState.invalid_calls): LangChain would set them aside, and the
    answer would end as an empty success.
    """
    return tools_condition(state)  # type: ignore[arg-type]  # it is typed for plain dicts
