package historyapi_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/server/historyapi"
	"github.com/clew-dev/clew/internal/server/internal/testca"
	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("Access to histories", func() {
	It("a caller may do what RBAC allows", func(ctx SpecContext) {
		client := fake.NewClientset()
		var asked []authorizationv1.SubjectAccessReviewSpec
		var down bool
		client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if down {
				return true, nil, errors.New("down")
			}
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			asked = append(asked, review.Spec)
			review.Status.Allowed = review.Spec.User == "ann"
			return true, review, nil
		})
		names := &namespaces{uid: "first"}
		access := historyapi.NewSubjectAccess(client.AuthorizationV1().SubjectAccessReviews(), names)
		ann := &user.DefaultInfo{Name: "ann", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}
		want := historyapi.Access{Verb: "get", Resource: "tasks", Subresource: "timeline", Namespace: "team", Name: "a"}

		for range 2 {
			allowed, _, err := access.Authorize(ctx, ann, want)
			Expect(err).NotTo(HaveOccurred())
			Expect(allowed).To(BeTrue(), "ann")
			allowed, _, err = access.Authorize(ctx, &user.DefaultInfo{Name: "bob"}, want)
			Expect(err).NotTo(HaveOccurred())
			Expect(allowed).To(BeFalse(), "bob")
		}
		Expect(asked).To(HaveLen(2), "one review for each caller")
		Expect(asked[0]).To(And(
			HaveField("User", "ann"), HaveField("Groups", ConsistOf("g")),
			HaveField("Extra", HaveKeyWithValue("k", ConsistOf("v")))), "the caller of the review")
		Expect(asked[0].ResourceAttributes).To(HaveValue(Equal(authorizationv1.ResourceAttributes{
			Verb: "get", Group: "history.clew.dev", Version: "v1alpha1", Resource: "tasks", Subresource: "timeline", Namespace: "team", Name: "a",
		})))

		By("asking about a namespace that is made anew, or is gone")
		for _, uid := range []string{"second", "", ""} {
			before := len(asked)
			names.uid = uid
			Expect(access.Authorize(ctx, ann, want)).Error().NotTo(HaveOccurred())
			Expect(asked).To(HaveLen(before+1), "a review about the namespace %q", uid)
		}

		By("asking while it is not known which namespace it is")
		names.err = errors.New("timed out")
		allowed, _, err := access.Authorize(ctx, ann, want)
		Expect(err).To(MatchError(names.err))
		Expect(allowed).To(BeFalse())
		names.err = nil

		By("asking while the API server is down")
		down = true
		want.Name = "b"
		allowed, _, err = access.Authorize(ctx, ann, want)
		Expect(err).To(HaveOccurred())
		Expect(allowed).To(BeFalse())
	})

	It("the front proxy names the caller", func(ctx SpecContext) {
		trusted := newAuthority()
		client := fake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
			Data: map[string]string{
				"requestheader-client-ca-file":       string(trusted.PEM()),
				"requestheader-allowed-names":        `["front-proxy-client"]`,
				"requestheader-username-headers":     `["X-Remote-User"]`,
				"requestheader-uid-headers":          `["X-Remote-Uid"]`,
				"requestheader-group-headers":        `["X-Remote-Group"]`,
				"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
			},
		})
		proxy, err := historyapi.NewFrontProxy(client)
		Expect(err).NotTo(HaveOccurred())
		go proxy.Run(ctx)

		server := httptest.NewUnstartedServer(reported(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, ok, err := proxy.AuthenticateRequest(r)
			if err != nil || !ok {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("User", who.User.GetName())
			w.Header().Set("Groups", who.User.GetGroups()[0])
		})))
		server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
		server.StartTLS()
		DeferCleanup(server.Close)

		ask := func(certificates ...tls.Certificate) *http.Response {
			GinkgoHelper()
			transport := server.Client().Transport.(*http.Transport).Clone()
			transport.TLSClientConfig.Certificates = certificates
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
			Expect(err).NotTo(HaveOccurred())
			r.Header.Set("X-Remote-User", "ann")
			r.Header.Set("X-Remote-Group", "g")
			response, err := transport.RoundTrip(r)
			Expect(err).NotTo(HaveOccurred())
			response.Body.Close()
			return response
		}
		front := clientOf(trusted, "front-proxy-client")
		Eventually(func() *http.Response { return ask(front) }).WithTimeout(20*time.Second).Should(
			HaveHTTPStatus(http.StatusOK), "the front proxy should be accepted")
		Expect(ask(front)).To(And(HaveHTTPHeaderWithValue("User", "ann"), HaveHTTPHeaderWithValue("Groups", "g")))
		for name, certificates := range cases.Sorted(map[string][]tls.Certificate{
			"no certificate": nil,
			"another name":   {clientOf(trusted, "somebody")},
			"another CA":     {clientOf(newAuthority(), "front-proxy-client")},
		}) {
			By("calling with " + name)
			Expect(ask(certificates...)).To(HaveHTTPStatus(http.StatusUnauthorized), name)
		}
	})
})

// namespaces are an API server with one namespace, if uid is set.
type namespaces struct {
	uid string
	err error
}

func (n *namespaces) Get(context.Context, string) (namespaceid.Namespace, error) {
	if n.err == nil && n.uid == "" {
		return namespaceid.Namespace{}, namespaceid.ErrNone
	}
	return namespaceid.Namespace{UID: n.uid}, n.err
}

func newAuthority() *testca.Authority {
	GinkgoHelper()
	authority, err := testca.New()
	Expect(err).NotTo(HaveOccurred())
	return authority
}

func clientOf(authority *testca.Authority, name string) tls.Certificate {
	GinkgoHelper()
	pair, err := authority.Pair(name)
	Expect(err).NotTo(HaveOccurred())
	return pair
}
