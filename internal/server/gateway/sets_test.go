package gateway_test

import (
	"context"

	"connectrpc.com/connect"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

var _ = Describe("Sets of checkpoints", func() {
	It("are requested with their hold, and released once on each stream", func() {
		f := serve(often)
		namespace := identity("a", 1).Namespace
		set := func(state v1alpha1.CheckpointSetState) *v1alpha1.Checkpoint {
			return &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "evening", UID: "uid-evening"},
				Spec:   v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "a"}, Scope: v1alpha1.CheckpointOfContract},
				Status: v1alpha1.CheckpointStatus{Set: &v1alpha1.CheckpointSet{State: state, Members: []v1alpha1.CheckpointSetMember{{Task: "a"}, {Task: "b"}}}}}
		}
		told := func(ctx context.Context) (takes chan *daemonv1.TakeCheckpoint, releases chan *daemonv1.ReleaseHold) {
			stream, err := f.client("a1").Commands(ctx, connect.NewRequest(&daemonv1.CommandsRequest{}))
			Expect(err).NotTo(HaveOccurred())
			takes, releases = make(chan *daemonv1.TakeCheckpoint, 10), make(chan *daemonv1.ReleaseHold, 10)
			go func() {
				for stream.Receive() {
					if c := stream.Msg().GetTakeCheckpoint(); c != nil {
						takes <- c
					}
					if c := stream.Msg().GetReleaseHold(); c != nil {
						releases <- c
					}
				}
				_ = stream.Close()
			}()
			return takes, releases
		}
		f.board.Set(set(v1alpha1.SetTaking))
		takes, releases := told(f.ctx)
		Expect(next(takes, "the request").GetHold()).To(Equal("uid-evening"))
		Expect(releases).To(BeEmpty(), "nothing is released before all are taken")
		f.board.Set(set(v1alpha1.SetReleasing))
		Expect(next(releases, "the release").GetSet()).To(Equal("uid-evening"))
		again, released := told(f.ctx)
		Expect(next(released, "the release, on the next stream").GetSet()).To(Equal("uid-evening"))
		f.board.Set(set(v1alpha1.SetTogether))
		f.board.Set(&v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "next", UID: "uid-next"}, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "a"}}})
		Expect(next(again, "another request").GetHold()).To(BeEmpty())
		Expect(released).To(BeEmpty())
	})
})
