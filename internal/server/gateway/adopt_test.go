package gateway_test

import (
	"context"
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// adoptingCode is a gitstore that notes what it is asked to adopt.
type adoptingCode struct {
	down, strange bool
	adopted       []string
}

func (c *adoptingCode) AdoptTask(_ context.Context, namespace, uid, former string) (gitstoreapi.Adoption, error) {
	if c.down {
		return gitstoreapi.Adoption{}, errors.New("the gitstore is down")
	}
	c.adopted = append(c.adopted, namespace+" "+uid+" "+former)
	return gitstoreapi.Adoption{Unknown: c.strange}, nil
}

var _ = Describe("A task that adopts the history of a former one", func() {
	It("begins once the gitstore has its checkpoints under its own UID", func(ctx SpecContext) {
		dsn, code := pg.Database(GinkgoTB()), &adoptingCode{down: true}
		f := serveAt(dsn, func(o *gateway.Options) { o.Code = code })
		store := openStore(dsn)
		former, task := history.Task{Namespace: "team", Name: "a", UID: "former"}, history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}
		Expect(store.Begin(ctx, former, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(store.Adopt(ctx, task, "former")).To(Succeed())

		_, err := f.tryBegin("a2", nil)
		Expect(err).To(beRefused(connect.CodeUnavailable))
		code.down = false
		for _, strange := range []bool{true, false, false} {
			code.strange = strange
			Expect(f.begin("a2").GetAttempt()).To(BeEquivalentTo(2))
		}
		Expect(code.adopted).To(Equal([]string{"team uid-of-a former", "team uid-of-a former"}), "again after the gitstore did not know the former one, and then no more")
	})
})
