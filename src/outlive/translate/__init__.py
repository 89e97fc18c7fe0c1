"""Pure translation between an upstream dialect and event drafts; one file per dialect."""
