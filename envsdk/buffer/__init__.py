"""The experience buffer: a database in which groups wait between explorers and a trainer.

    open -> leased (an explorer plays it) -> ready -> taken (for a step) -> trained
                                          every state but trained -> dropped (why)

It is the ledger of a job whose programs come and go: it hands out tasks, keeps capacity and staleness, and
remembers which batch each group was trained in. `contract.py` has the words, `sql_buffer.py` the
transactions.
"""
