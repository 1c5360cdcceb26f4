package postgres

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// Bounds of a record's contents other than message texts, which are cut into pieces:
// names, notes and lists. Agents and tenants choose these, and every list, timeline and
// conversation reads them again.
const (
	// maxNote bounds notes, in bytes; maxBranchName bounds the name of the agent's git
	// branch.
	maxNote       = 4 << 10
	maxBranchName = 1 << 10
	// maxListed and maxChanges bound the number of files that a checkpoint lists, and
	// listedBytes and changesBytes the total length of their paths; the counts next to
	// the lists include all files.
	maxListed    = 100
	maxChanges   = 1000
	listedBytes  = 16 << 10
	changesBytes = 64 << 10
	// maxDetails bounds the number of an event's details, detailsBytes their total
	// length.
	maxDetails   = 32
	detailsBytes = 16 << 10
	// maxRequestText bounds each text of a request, in bytes.
	maxRequestText = 1 << 10
	// maxRewoundPaths bounds the number of paths of a rewind, rewoundBytes their total length:
	// a Task's spec allows no more.
	maxRewoundPaths = 100
	rewoundBytes    = 100 << 10
)

// bounded returns the record as it may be stored. The given one is not modified.
func bounded(r history.Record) history.Record {
	switch {
	case r.Message != nil:
		m := r.Message.Clone()
		if c := m.ToolCall; c != nil {
			c.ID, c.Name = shortName(c.ID), shortName(c.Name)
		}
		if a := m.ToolResult; a != nil {
			a.CallID = shortName(a.CallID)
		}
		r.Message = &m
	case r.Checkpoint != nil:
		c := boundedCheckpoint(*r.Checkpoint)
		r.Checkpoint = &c
	case r.Event != nil:
		r.Event = &history.DaemonEvent{
			Reason: shortName(r.Event.Reason), Message: clip.Marked(clean(r.Event.Message), maxNote), Details: boundedDetails(r.Event.Details),
		}
	case r.Move != nil:
		op := *r.Move
		op.ID, op.Reason = shortName(op.ID), clip.Marked(clean(op.Reason), maxNote)
		op.Rewound = boundedRewound(op.Rewound)
		r.Move = &op
	case r.Request != nil:
		q := *r.Request
		q.ID, q.Tool, q.InputDigest = word(q.ID), shortName(q.Tool), word(q.InputDigest)
		for _, s := range []*string{&q.Input, &q.Message, &q.Refused} {
			*s = clip.Marked(clean(*s), maxRequestText)
		}
		r.Request = &q
	case r.RequestEnd != "":
		r.RequestEnd = word(r.RequestEnd)
	case r.HoldEnd != nil:
		end := *r.HoldEnd
		end.Set = word(end.Set)
		r.HoldEnd = &end
	case r.Gap != nil:
		r.Gap = &history.Gap{Through: r.Gap.Through, Reason: shortName(r.Gap.Reason)}
	}
	return r
}

// boundedRewound returns nil for more than a rewind can have: undoing it by some of its
// paths would be something else.
func boundedRewound(r *history.Rewound) *history.Rewound {
	if r == nil || len(r.Paths) > maxRewoundPaths {
		return nil
	}
	bytes := 0
	for _, path := range r.Paths {
		bytes += len(path)
	}
	if bytes > rewoundBytes {
		return nil
	}
	kept := *r
	kept.Scope = shortName(r.Scope)
	return &kept
}

// shortName returns a name or an id as it is stored.
func shortName(s string) string { return conversation.ShortID(clean(s)) }

// word returns one of our words or ids as it is stored. They have only printable characters, unless
// somebody else has made them up: then what a terminal could act on is replaced, since the lists of
// every program print such fields as they are.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?' // no longer than any of them
	}, shortName(s))
}

func boundedCheckpoint(c history.Checkpoint) history.Checkpoint {
	for _, s := range []*string{
		&c.Trigger, &c.Commit, &c.Tree, &c.Parent, &c.Base, &c.StateCommit, &c.GitHead,
		&c.RequestedByName, &c.RequestedByUID, &c.Consistency,
	} {
		*s = word(*s)
	}
	c.Message, c.GitBranch = clip.Marked(clean(c.Message), maxNote), clip.Marked(clean(c.GitBranch), maxBranchName)
	c.DirtyFiles = listed(c.DirtyFiles, maxListed, listedBytes, func(path *string) int {
		*path = clean(*path)
		return len(*path)
	})
	c.Skipped = listed(c.Skipped, maxListed, listedBytes, func(f *history.SkippedFile) int {
		f.Path, f.Reason = clean(f.Path), word(f.Reason)
		return len(f.Path) + len(f.Reason)
	})
	c.Changes = listed(c.Changes, maxChanges, changesBytes, func(f *history.FileChange) int {
		f.Path, f.Action = clean(f.Path), word(f.Action)
		return len(f.Path) + len(f.Action)
	})
	if t := c.RiskyTool; t != nil {
		c.RiskyTool = &history.RiskyTool{Name: shortName(t.Name), CallID: shortName(t.CallID), Before: t.Before}
	}
	if a := c.Session; a != nil {
		c.Session = &history.AgentSession{Agent: shortName(a.Agent), ID: shortName(a.ID), Version: shortName(a.Version), Model: shortName(a.Model)}
	}
	return c
}

// listed returns the beginning of a list: at most the given number of entries and bytes.
// prepare makes an entry fit to be stored and returns its length.
func listed[T any](all []T, most, bytes int, prepare func(*T) int) []T {
	kept := slices.Clone(all[:min(len(all), most)])
	for i := range kept {
		if bytes -= prepare(&kept[i]); bytes < 0 {
			return kept[:i]
		}
	}
	return kept
}

// boundedDetails keeps the first details in the order of their names.
func boundedDetails(details map[string]string) map[string]string {
	kept, bytes := make(map[string]string, min(len(details), maxDetails)), detailsBytes
	for _, key := range slices.Sorted(maps.Keys(details)) {
		short, value := shortName(key), clip.Marked(clean(details[key]), maxNote)
		if bytes -= len(short) + len(value); bytes < 0 || len(kept) == maxDetails {
			break
		}
		kept[short] = value
	}
	return kept
}
