// Package conversation is the domain of a task's conversation: messages, their
// content addresses, turns and the sums kept at a position. It does no I/O.
//
// A conversation is an append-only log. A position counts the messages up to
// it, so position 0 is before the first one. Going back to a position never
// parts a tool call from its result: Log keeps, for each position, the turn
// boundary to which it snaps.
package conversation
