package plan

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

const (
	// Clew is the actor of transitions that nobody asked for.
	Clew = clew
	clew = "clew"
	// Unknown is the actor of a request that left no name.
	Unknown = "unknown"
	// keepEntries is how many recorded entries stay in the status for people.
	keepEntries = 20
	// maxUnrecorded is how many entries may wait for the history store. The
	// schema allows 256; one decision adds fewer than ten.
	maxUnrecorded = 240
	maxMessage    = 1024
)

func (d *decision) recorded() int64 { return max(d.s.RecordedSequence, d.o.Recorded) }

// outboxFull reports whether too many entries wait for the history store for another
// transition to be made.
func (d *decision) outboxFull() bool {
	return d.s.HistorySequence-d.recorded() >= maxUnrecorded
}

// Unrecorded are the entries the history store may not have yet.
func Unrecorded(s *v1alpha1.TaskStatus, recorded int64) []v1alpha1.HistoryEntry {
	recorded = max(recorded, s.RecordedSequence)
	i := slices.IndexFunc(s.History, func(e v1alpha1.HistoryEntry) bool { return e.Sequence > recorded })
	if i < 0 {
		return nil
	}
	return s.History[i:]
}

// entry appends a transition of the newest attempt to the outbox.
func (d *decision) entry(reason, actor, message string) { d.entryAt(reason, actor, message, 0) }

func (d *decision) entryAt(reason, actor, message string, checkpoint int64) {
	attempt := int64(0)
	if a := d.last(); a != nil {
		attempt = a.Number
	}
	d.append(v1alpha1.HistoryEntry{Reason: reason, Actor: actor, Message: message, Attempt: attempt, Checkpoint: checkpoint})
}

// entryOf is entry for an attempt that is just being made.
func (d *decision) entryOf(attempt int64, reason, actor, message string) {
	d.append(v1alpha1.HistoryEntry{Reason: reason, Actor: actor, Message: message, Attempt: attempt})
}

func (d *decision) append(e v1alpha1.HistoryEntry) {
	d.s.HistorySequence++
	at := metav1.NewMicroTime(d.now)
	if n := len(d.s.History); n > 0 && !d.s.History[n-1].Time.Before(&at) {
		// Timelines are ordered by time: entries of one decision keep their order.
		at = metav1.NewMicroTime(d.s.History[n-1].Time.Add(time.Microsecond))
	}
	e.Sequence, e.Time, e.Message = d.s.HistorySequence, at, cut(e.Message)
	d.s.History = append(d.s.History, e)
	d.plan.Entries = append(d.plan.Entries, e)
}

// trim drops the oldest entries that are recorded; the newest ones stay for people.
func (d *decision) trim() {
	drop := 0
	for drop < len(d.s.History)-keepEntries && d.s.History[drop].Sequence <= d.recorded() {
		drop++
	}
	d.s.History = d.s.History[drop:]
}

// cut shortens a message to what the schema allows, and escapes what is not text: parts
// of it may come from a pod.
func cut(message string) string { return resources.PlainText(message, maxMessage) }
