package rollback

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// LeaseName is the name of the lease for the managers' leader election.
const LeaseName = "clew-manager"

// annotationTerm is the annotation in which the lease's holder records the state in which
// it took the lease over. Its renewals alone would soon hide that the lease was rolled back.
const annotationTerm = "clew.dev/term"

// term is the period for which one process holds the lease.
type term struct {
	// Process is unique to each process.
	Process string `json:"process"`
	// Transitions and Renewed are those of the lease when the process took it over.
	Transitions int32            `json:"transitions"`
	Renewed     metav1.MicroTime `json:"renewed"`
}

// moment is a point in a lease's life. Moments only increase: the holder makes each renewal
// later than the last, whatever its clock does.
type moment struct {
	transitions int32
	renewed     time.Time
}

// before reports whether m is earlier than n.
func (m moment) before(n moment) bool {
	if order := cmp.Compare(m.transitions, n.transitions); order != 0 {
		return order < 0
	}
	return m.renewed.Before(n.renewed)
}

// next returns the time of the renewal after m: renewed, or just after m if renewed is not
// later, since a holder's clock may be set back.
func (m moment) next(transitions int32, renewed time.Time) time.Time {
	if m.before(moment{transitions, micro(renewed)}) {
		return renewed
	}
	return m.renewed.Add(time.Microsecond)
}

// String formats the moment for error messages.
func (m moment) String() string {
	return fmt.Sprintf("transition %d, renewal of %s", m.transitions, m.renewed.UTC().Format(metav1.RFC3339Micro))
}

// micro truncates a time to the precision of a lease.
func micro(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

// observation is the state of the lease at one read; zero if it was not read.
type observation struct {
	uid types.UID
	at  moment
	// process has held the lease since from; "" if the lease has no valid term.
	process string
	from    moment
}

// observe extracts the observation from a lease.
func observe(lease *coordinationv1.Lease) observation {
	s := observation{uid: lease.UID, at: moment{transitions: ptr.Deref(lease.Spec.LeaseTransitions, 0)}}
	if lease.Spec.RenewTime != nil {
		s.at.renewed = micro(lease.Spec.RenewTime.Time)
	}
	if held, ok := termOf(lease); ok {
		s.process, s.from = held.Process, moment{held.Transitions, micro(held.Renewed.Time)}
	}
	return s
}

// termOf reads the term of the lease's holder. It returns false if there is no valid one.
func termOf(lease *coordinationv1.Lease) (term, bool) {
	var t term
	err := json.Unmarshal([]byte(lease.Annotations[annotationTerm]), &t)
	return t, err == nil
}

// recordTerm records in a lease that a process takes it over in its current state, unless that
// process already holds it.
func recordTerm(process string, lease *coordinationv1.Lease) error {
	if held, ok := termOf(lease); ok && held.Process == process {
		return nil
	}
	found := observe(lease).at
	text, err := json.Marshal(term{process, found.transitions, metav1.NewMicroTime(found.renewed)})
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationTerm, string(text))
	return nil
}

// rolledBackSince returns an error if the lease was rolled back between the earlier
// observation seen and s. It was if it is now older than before, or if its holder took it
// over in an older state. A lease that was deleted and created again proves nothing.
func (s observation) rolledBackSince(seen observation) error {
	switch {
	case seen.uid == "" || s.uid != seen.uid:
		return nil
	case s.at.before(seen.at):
		return rolledBack("the lease %s is at %s, but was already at %s", LeaseName, s.at, seen.at)
	case s.process != "" && s.process != seen.process && s.from.before(seen.at):
		return rolledBack("the lease %s was taken over at %s, but was already at %s", LeaseName, s.from, seen.at)
	}
	return nil
}

// rolledBack returns the error for a rollback of the API server's state, with its proof.
func rolledBack(format string, proof ...any) error {
	return fmt.Errorf(format+": the Kubernetes API's state was restored from an older copy, so this process's caches are invalid; it exits, and the next process begins with empty ones", proof...)
}
