"""Extensions that ship with replsvc, one file each."""
