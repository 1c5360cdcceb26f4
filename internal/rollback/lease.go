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

// LeaseName is the name of the lease by which managers take turns.
const LeaseName = "clew-manager"

// annotationTerm is where the lease's holder says what it took the lease over
// from. Its renewals alone would hide soon that the lease was put back.
const annotationTerm = "clew.dev/term"

// term is the time for which one process holds the lease.
type term struct {
	// Process is another one for each process.
	Process string `json:"process"`
	// Transitions and Renewed are those of the lease that it found.
	Transitions int32            `json:"transitions"`
	Renewed     metav1.MicroTime `json:"renewed"`
}

// moment is a point in a lease's life, and only ever grows: the holder sees to
// it that each renewal is later than the last, whatever its clock does.
type moment struct {
	transitions int32
	renewed     time.Time
}

func (m moment) before(n moment) bool {
	if order := cmp.Compare(m.transitions, n.transitions); order != 0 {
		return order < 0
	}
	return m.renewed.Before(n.renewed)
}

// next is renewed, or just later than m if it is not later: a holder's clock
// may be set back.
func (m moment) next(transitions int32, renewed time.Time) time.Time {
	if m.before(moment{transitions, micro(renewed)}) {
		return renewed
	}
	return m.renewed.Add(time.Microsecond)
}

func (m moment) String() string {
	return fmt.Sprintf("transition %d, renewal of %s", m.transitions, m.renewed.UTC().Format(metav1.RFC3339Micro))
}

// micro is how exact a lease is about time.
func micro(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

// sight is what a lease said when it was looked at; zero if it was not.
type sight struct {
	uid types.UID
	at  moment
	// process holds the lease since from; "" if the lease does not say so.
	process string
	from    moment
}

func sightOf(lease *coordinationv1.Lease) sight {
	s := sight{uid: lease.UID, at: moment{transitions: ptr.Deref(lease.Spec.LeaseTransitions, 0)}}
	if lease.Spec.RenewTime != nil {
		s.at.renewed = micro(lease.Spec.RenewTime.Time)
	}
	if held, ok := termOf(lease); ok {
		s.process, s.from = held.Process, moment{held.Transitions, micro(held.Renewed.Time)}
	}
	return s
}

func termOf(lease *coordinationv1.Lease) (term, bool) {
	var t term
	err := json.Unmarshal([]byte(lease.Annotations[annotationTerm]), &t)
	return t, err == nil
}

// begins says in a lease that a process takes it over as it is.
func begins(process string, lease *coordinationv1.Lease) error {
	if held, ok := termOf(lease); ok && held.Process == process {
		return nil
	}
	found := sightOf(lease).at
	text, err := json.Marshal(term{process, found.transitions, metav1.NewMicroTime(found.renewed)})
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationTerm, string(text))
	return nil
}

// putBackSince compares two sights of the lease, the later one first. The lease
// went back if it is older than it was, or if its holder took it over when it
// was. One that was deleted and made again proves nothing.
func (s sight) putBackSince(seen sight) error {
	switch {
	case seen.uid == "" || s.uid != seen.uid:
		return nil
	case s.at.before(seen.at):
		return putBack("the lease %s is at %s, and was at %s before", LeaseName, s.at, seen.at)
	case s.process != "" && s.process != seen.process && s.from.before(seen.at):
		return putBack("the lease %s was taken over at %s, and was at %s before", LeaseName, s.from, seen.at)
	}
	return nil
}

func putBack(format string, proof ...any) error {
	return fmt.Errorf(format+": the Kubernetes API's state was put back, and what this process knows of it is of no use; the next process begins anew", proof...)
}
