"""A plugin that verifies drafts inside vLLM by any rule of specbench."""
