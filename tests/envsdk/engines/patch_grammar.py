"""A grammar of patches as Codex's editing tool has it, in words of our own."""

PATCH_GRAMMAR = r"""
start: begin file+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

file: added | deleted | updated
added: "*** Add File: " path LF line+      // each line of the file
deleted: "*** Delete File: " path LF
updated: "*** Update File: " path LF ["*** Move to: " path LF] change?
change: (place | changed)+ last?
place: ("@@" | "@@ " /(.+)/) LF
changed: ("+" | "-" | " ") /(.*)/ LF
last: "*** End of File" LF
line: "+" /(.*)/ LF -> added_line
path: /(.+)/

%import common.LF
"""
PATCH = '*** Begin Patch\n*** Update File: é "a"\\b.py\n@@ def\n-x\n+\ty\n*** Add File: c\n+\n*** End Patch'
