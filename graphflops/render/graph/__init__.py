"""Graphs of programs as files and tables: GraphML, node-link JSON, Graphviz, Mermaid, and answers in words."""
