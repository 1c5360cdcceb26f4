// Package conversation is the domain model of a task's conversation: messages,
// their content addresses, turns, and totals at a position. It does no I/O.
//
// A conversation is an append-only log. A position is the number of messages
// before it, so position 0 is before the first message. Going back to a position
// never separates a tool call from its result: Log determines, for each position,
// the turn boundary that it snaps to.
package conversation
