package postgres

import (
	"maps"
	"slices"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// Bounds of what a record says beside the texts of a message, which are cut into
// pieces: names, notes and lists. Agents and tenants say what these are, and they
// are read again with each list, timeline and conversation.
const (
	// maxNote is for notes, in bytes, maxBranchName for the agent's branch.
	maxNote       = 4 << 10
	maxBranchName = 1 << 10
	// maxListed and maxChanges are how many files a checkpoint lists, and the
	// bytes how long their paths are together; the counts beside them count all.
	maxListed    = 100
	maxChanges   = 1000
	listedBytes  = 16 << 10
	changesBytes = 64 << 10
	// maxDetails is how many details an event has, detailsBytes how long all are.
	maxDetails   = 32
	detailsBytes = 16 << 10
)

// bounded is the record as it may be stored. The given one is left as it is.
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
		r.Event = &history.Note{
			Reason: shortName(r.Event.Reason), Message: clip.Marked(clean(r.Event.Message), maxNote), Details: boundedDetails(r.Event.Details),
		}
	case r.Move != nil:
		op := *r.Move
		op.ID, op.Reason = shortName(op.ID), clip.Marked(clean(op.Reason), maxNote)
		r.Move = &op
	case r.Gap != nil:
		r.Gap = &history.Gap{Through: r.Gap.Through, Reason: shortName(r.Gap.Reason)}
	}
	return r
}

// shortName is a name or an id as it is stored.
func shortName(s string) string { return conversation.ShortID(clean(s)) }

func boundedCheckpoint(c history.Checkpoint) history.Checkpoint {
	for _, s := range []*string{
		&c.Trigger, &c.Commit, &c.Tree, &c.Parent, &c.Base, &c.StateCommit, &c.GitHead,
		&c.RequestedByName, &c.RequestedByUID, &c.Consistency,
	} {
		*s = shortName(*s)
	}
	c.Message, c.GitBranch = clip.Marked(clean(c.Message), maxNote), clip.Marked(clean(c.GitBranch), maxBranchName)
	c.DirtyFiles = listed(c.DirtyFiles, maxListed, listedBytes, func(path *string) int {
		*path = clean(*path)
		return len(*path)
	})
	c.Skipped = listed(c.Skipped, maxListed, listedBytes, func(f *history.SkippedFile) int {
		f.Path, f.Reason = clean(f.Path), shortName(f.Reason)
		return len(f.Path) + len(f.Reason)
	})
	c.Changes = listed(c.Changes, maxChanges, changesBytes, func(f *history.FileChange) int {
		f.Path, f.Action = clean(f.Path), shortName(f.Action)
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

// listed is the beginning of a list: at most so many, and so many bytes together.
// prepare makes one fit to be stored, and says how long it is.
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
