"""Extensions: what an author writes, and how it becomes one resolved model."""
