package controller_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// errFailing has a request answered as by an API server behind a webhook that is down.
var errFailing = errors.New("failed calling webhook")

// failing returns the answer to a request that ends with errFailing.
func failing(request *http.Request) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":%q}`, errFailing)
	return &http.Response{
		Status: "500 Internal Server Error", StatusCode: http.StatusInternalServerError, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

var _ = Describe("A place among the children of a supervisor", func() {
	// familyOf returns a world in which five tasks wait to become the second child.
	familyOf := func() *world {
		GinkgoHelper()
		w := newWorld()
		w.running("lead", leads("port"), maximum(1))
		w.apply("first", childOf("lead"))
		w.pod("first", 1)
		for n := range 5 {
			w.apply(fmt.Sprintf("next-%d", n), childOf("lead"))
			w.until(fmt.Sprintf("next-%d", n), v1alpha1.ReasonChildLimitReached)
		}
		return w
	}

	It("does not go round among those that wait while the API server refuses every write", func() {
		w := familyOf()
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/tasks/next-") {
				return errFailing
			}
			return nil
		})
		tried := func() (writes []string) {
			for _, write := range w.requests.list() {
				if strings.HasPrefix(write, http.MethodPut) && strings.Contains(write, "/tasks/next-") {
					writes = append(writes, write)
				}
			}
			return writes
		}
		before := len(tried())
		w.change("lead", maximum(2))
		w.Eventually(func() int { return len(tried()) - before }).Should(BeNumerically(">", 1), "it is tried again")
		w.Consistently(func() int { return len(tried()) - before }).WithTimeout(2 * time.Second).Should(BeNumerically("<", 20))

		By("letting it answer again")
		w.requests.setSpoil(nil)
		w.pod("next-0", 1)
	})

	It("does not go round either while the one that has it says nothing of what it does", func() {
		w := familyOf()
		for n := range 8 { // what costs nothing is told in a burst of so many at most
			id := fmt.Sprintf("r%d", n)
			w.change("next-0", builders.Rewind(id, "none"))
			w.Eventually(w.current).WithArguments("next-0").Should(HaveField("Status.Rewind", HaveValue(HaveField("ID", id))))
		}
		for n := range 4 { // it is the only one that waits
			w.Expect(w.client.Delete(w.ctx, w.task(fmt.Sprintf("next-%d", n+1)))).To(Succeed())
		}
		w.change("next-0", builders.Rewind("late", "none"), builders.Suspended)
		reads := func() int {
			return w.requests.count("/apis/clew.dev/v1alpha1/namespaces/" + w.namespace + "/tasks/next-0")
		}
		before := reads()
		w.change("lead", maximum(2))
		w.Eventually(reads).Should(BeNumerically(">", before))
		w.Consistently(reads).WithTimeout(2 * time.Second).Should(BeNumerically("<", before+20))
	})
})
