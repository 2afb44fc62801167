"""LangGraph, and only LangGraph: the agent as a graph of a model and its tools."""
