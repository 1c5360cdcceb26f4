package rollback_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/internal/rollback"
)

var (
	resource  = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	missing   = sighting{err: apierrors.NewNotFound(resource, rollback.LeaseName)}
	forbidden = sighting{err: apierrors.NewForbidden(resource, rollback.LeaseName, nil)}
)

// sighting is the result of one read of the lease.
type sighting struct {
	lease *coordinationv1.Lease
	err   error
}

// renewed is a read of a lease of the holder with this number, renewed at a time after a
// fixed start.
func renewed(holder int32, after time.Duration) sighting { return renewedAs("a", holder, after) }

func renewedAs(uid types.UID, holder int32, after time.Duration) sighting {
	at := metav1.NewMicroTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(after))
	return sighting{lease: &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: rollback.LeaseName, UID: uid},
		Spec:       coordinationv1.LeaseSpec{LeaseTransitions: ptr.To(holder), RenewTime: &at},
	}}
}

// watch runs a Watch that reads one sighting after another, the last one for ever, and
// growing resource versions. It returns the Watch's error, or nil if the Watch continues
// after all sightings.
func watch(t *testing.T, sightings ...sighting) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	versions := 0
	shown := 0
	w := &rollback.Watch{
		Interval: time.Millisecond, RetryInterval: time.Millisecond, Log: logr.Discard(),
		Version: func(context.Context) (string, error) {
			versions++
			return string(rune('0' + min(versions, 9))), nil
		},
		Lease: func(context.Context) (*coordinationv1.Lease, error) {
			s := sightings[min(shown, len(sightings)-1)]
			if shown++; shown == len(sightings)+2 {
				cancel()
			}
			return s.lease, s.err
		},
	}
	return w.Start(ctx)
}

func TestALeaseThatWasRolledBackEndsTheWatch(t *testing.T) {
	for name, sightings := range map[string][]sighting{
		"to an earlier renewal":             {renewed(3, 10*time.Second), renewed(3, 5*time.Second)},
		"by a microsecond":                  {renewed(3, 2*time.Microsecond), renewed(3, time.Microsecond)},
		"to an earlier holder, later clock": {renewed(3, time.Second), renewed(2, time.Minute)},
		"while it could not be read":        {renewed(3, time.Minute), forbidden, missing, renewed(3, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			gomega.NewWithT(t).Expect(watch(t, sightings...)).To(gomega.MatchError(gomega.ContainSubstring("state was restored")))
		})
	}
}

func TestAnOrdinaryLeaseEndsNothing(t *testing.T) {
	for name, sightings := range map[string][]sighting{
		"it is renewed":    {renewed(3, time.Second), renewed(3, 2*time.Second)},
		"nobody renews it": {renewed(3, time.Second), renewed(3, time.Second)},
		"it differs by less than a lease's precision": {renewed(3, 1900*time.Nanosecond), renewed(3, 1100*time.Nanosecond)},
		"the next holder's clock is slow":             {renewed(3, time.Hour), renewed(4, time.Second)},
		"it is deleted and created again":             {renewed(3, time.Hour), missing, renewedAs("b", 0, time.Second)},
		"it is created again at once":                 {renewed(3, time.Hour), renewedAs("b", 0, time.Second)},
		"there is none":                               {missing},
		"reading it is forbidden":                     {forbidden},
		"it was never renewed":                        {{lease: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}, renewed(1, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			gomega.NewWithT(t).Expect(watch(t, sightings...)).To(gomega.Succeed())
		})
	}
}
