package gateway_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/testing/cases"
)

// often has the gateway send a heartbeat every few milliseconds.
func often(o *gateway.Options) { o.Heartbeat = 10 * time.Millisecond }

var _ = Describe("The gateway's commands", func() {
	It("a requested checkpoint is taken", func() {
		f := serve(often)
		ctx, cancel := context.WithCancel(f.ctx)
		f.board.Set(request("a", "early"))
		f.board.Set(request("b", "of-another-task"))
		commands, ended := f.commands(ctx, "a1")
		expectCommand(commands, "early")
		f.board.Set(request("a", "late"))
		expectCommand(commands, "late")
		cancel()
		next(ended, "the end of a stream that its daemon cancelled")

		By("reconnecting: requests that are not completed are sent again")
		done := request("a", "late")
		done.Status.Conditions = []metav1.Condition{{Type: clewv1alpha1.CheckpointReady, Status: metav1.ConditionTrue}}
		f.board.Set(done)
		commands, ended = f.commands(f.ctx, "a1")
		expectCommand(commands, "early")

		By("closing the gateway")
		f.gateway.Close()
		Expect(next(ended, "the end of the stream of a closed gateway")).To(beRefused(connect.CodeUnavailable))
		left, open := <-commands
		Expect(open).To(BeFalse(), "received %v, which is completed or of another task", left)
	})

	// Two servers, one database: a daemon whose pod was replaced is stopped by the server
	// it is connected to, wherever the new attempt has begun.
	Describe("a newer attempt ends the commands of the previous one", func() {
		for name, tt := range cases.Sorted(map[string]struct {
			change []func(*gateway.Options)
			listen bool
			// same: the newer attempt begins at the server of the stream.
			same bool
		}{
			"at the same server":       {same: true},
			"at another, notified":     {listen: true},
			"at another, by heartbeat": {change: []func(*gateway.Options){often}},
		}) {
			It(name, func() {
				dsn := pg.Database(GinkgoTB())
				f := serveAt(dsn, tt.change...)
				other := f
				if !tt.same {
					other = serveAt(dsn)
				}
				if tt.listen {
					f.listen(dsn)
				}
				f.begin("a1")
				_, ended := f.commands(f.ctx, "a1")
				other.begin("a2")
				Expect(next(ended, "the end of the older attempt's stream")).To(beRefused(connect.CodeAborted))

				By("reconnecting: the older attempt cannot, and the newer one is not affected")
				_, again := f.commands(f.ctx, "a1")
				Expect(next(again, "the end of the older attempt's stream")).To(beRefused(connect.CodeAborted))
				commands, ended := f.commands(f.ctx, "a2")
				f.board.Set(request("a", "asked"))
				expectCommand(commands, "asked")
				Expect(ended).NotTo(Receive(), "the newer attempt's stream goes on")
			})
		}
	})

	// Commands do not come from the store: its outage ends no stream.
	It("commands outlive the store", func() {
		f := serveAt(unreachable, often)
		commands, ended := f.commands(f.ctx, "a1")
		f.gateway.HandleNotification(history.Notification{})
		f.board.Set(request("a", "asked"))
		expectCommand(commands, "asked")
		Expect(ended).NotTo(Receive(), "the stream goes on")
	})

	It("command streams end", func() {
		f := serve(func(o *gateway.Options) { o.StreamLifetime = 50 * time.Millisecond })
		_, ended := f.commands(f.ctx, "a1")
		Expect(next(ended, "the end of the stream's lifetime")).NotTo(HaveOccurred())
	})

	// More requests than are sent at once.
	It("requests that never complete do not keep others from the daemon", func() {
		f := serve(often)
		for i := range 150 {
			f.board.Set(request("a", fmt.Sprintf("stuck-%03d", i)))
		}
		f.board.Set(request("a", "wanted"))
		ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
		defer cancel()
		commands, ended := f.commands(ctx, "a1")
		for i := range 150 {
			expectCommand(commands, fmt.Sprintf("stuck-%03d", i))
		}
		expectCommand(commands, "wanted")
		f.board.Set(request("a", "yet another"))
		expectCommand(commands, "yet another")
		cancel()
		next(ended, "the end of a stream that its daemon cancelled")
	})
})
