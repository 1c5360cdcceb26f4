package gateway_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/clew-dev/clew/internal/server/gateway"
)

var _ = Describe("Commands in limited number", func() {
	// More requests than are sent at once.
	It("requests that never complete do not keep others from the daemon", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t), func(o *gateway.Options) { o.Heartbeat = 10 * time.Millisecond })
		for i := range 150 {
			f.board.Set(request("a", fmt.Sprintf("stuck-%03d", i)))
		}
		f.board.Set(request("a", "wanted"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		commands, ended := f.commands(ctx, "a1")
		for i := range 150 {
			expect(t, commands, fmt.Sprintf("stuck-%03d", i))
		}
		expect(t, commands, "wanted")
		f.board.Set(request("a", "yet another"))
		expect(t, commands, "yet another")
		cancel()
		<-ended
	})
})
