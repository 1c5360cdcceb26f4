package plan

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

const (
	// Clew is the actor of transitions that nobody requested.
	Clew = clew
	clew = "clew"
	// Unknown is the actor of a request that left no name.
	Unknown = "unknown"
	// keepEntries is the number of recorded entries that the status keeps for people.
	keepEntries = 20
	// maxUnrecorded is the number of entries that may wait for the history store. The
	// schema allows 256; one decision adds fewer than ten.
	maxUnrecorded = 240
	// maxMessage is the length of a message that the schema allows, in characters.
	maxMessage = 1024
)

// recorded returns the sequence number up to which the history store has the entries.
func (d *decision) recorded() int64 { return max(d.s.RecordedSequence, d.o.Recorded) }

// outboxFull reports whether so many entries wait for the history store that no further
// transition may be made.
func (d *decision) outboxFull() bool {
	return d.s.HistorySequence-d.recorded() >= maxUnrecorded
}

// Unrecorded returns the entries that the history store may not have yet.
func Unrecorded(s *v1alpha1.TaskStatus, recorded int64) []v1alpha1.HistoryEntry {
	recorded = max(recorded, s.RecordedSequence)
	i := slices.IndexFunc(s.History, func(e v1alpha1.HistoryEntry) bool { return e.Sequence > recorded })
	if i < 0 {
		return nil
	}
	return s.History[i:]
}

// addEntry adds an entry for a transition of the newest attempt to status.history.
func (d *decision) addEntry(reason, actor, message string) {
	d.addCheckpointEntry(reason, actor, message, 0)
}

// addCheckpointEntry is addEntry for a transition that is about a checkpoint.
func (d *decision) addCheckpointEntry(reason, actor, message string, checkpoint int64) {
	attempt := int64(0)
	if a := d.last(); a != nil {
		attempt = a.Number
	}
	d.appendEntry(v1alpha1.HistoryEntry{Reason: reason, Actor: actor, Message: message, Attempt: attempt, Checkpoint: checkpoint})
}

// addAttemptEntry is addEntry for an attempt that is not in the status yet.
func (d *decision) addAttemptEntry(attempt int64, reason, actor, message string) {
	d.appendEntry(v1alpha1.HistoryEntry{Reason: reason, Actor: actor, Message: message, Attempt: attempt})
}

// appendEntry gives the entry its number and time, and appends it to status.history.
func (d *decision) appendEntry(e v1alpha1.HistoryEntry) {
	d.s.HistorySequence++
	at := metav1.NewMicroTime(d.now)
	if n := len(d.s.History); n > 0 && !d.s.History[n-1].Time.Before(&at) {
		// Timelines are ordered by time: entries of one decision keep their order.
		at = metav1.NewMicroTime(d.s.History[n-1].Time.Add(time.Microsecond))
	}
	e.Sequence, e.Time, e.Message = d.s.HistorySequence, at, statusText(e.Message)
	d.s.History = append(d.s.History, e)
	d.plan.Entries = append(d.plan.Entries, e)
}

// trim drops the oldest recorded entries; the newest are kept for people.
func (d *decision) trim() {
	drop := 0
	for drop < len(d.s.History)-keepEntries && d.s.History[drop].Sequence <= d.recorded() {
		drop++
	}
	d.s.History = d.s.History[drop:]
}

// statusText truncates a message to what the schema allows, and escapes control
// characters: parts of it may come from a pod.
func statusText(message string) string { return resources.PlainText(message, maxMessage) }
