package historyapi_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/clew-dev/clew/internal/server/historyapi"
	"github.com/clew-dev/clew/internal/server/internal/testca"
)

var _ = Describe("Access to histories", func() {
	It("a caller may do what RBAC allows", func() {
		t := GinkgoTB()
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
		access := historyapi.NewSubjectAccess(client.AuthorizationV1().SubjectAccessReviews())
		ann := &user.DefaultInfo{Name: "ann", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}
		want := historyapi.Access{Verb: "get", Resource: "tasks", Subresource: "timeline", Namespace: "team", Name: "a"}

		for range 2 {
			if allowed, _, err := access.Authorize(t.Context(), ann, want); err != nil || !allowed {
				t.Errorf("ann: %v, %v", allowed, err)
			}
			if allowed, _, err := access.Authorize(t.Context(), &user.DefaultInfo{Name: "bob"}, want); err != nil || allowed {
				t.Errorf("bob: %v, %v", allowed, err)
			}
		}
		if len(asked) != 2 {
			t.Errorf("%d reviews were created", len(asked))
		}
		got := asked[0]
		if d := cmp.Diff([]string{"ann", "g", "v"}, []string{got.User, got.Groups[0], got.Extra["k"][0]}); d != "" {
			t.Errorf("user of the review (-want +got):\n%s", d)
		}
		attributes := authorizationv1.ResourceAttributes{
			Verb: "get", Group: "history.clew.dev", Version: "v1alpha1", Resource: "tasks", Subresource: "timeline", Namespace: "team", Name: "a",
		}
		if d := cmp.Diff(attributes, *got.ResourceAttributes); d != "" {
			t.Errorf("attributes of the review (-want +got):\n%s", d)
		}
		down = true
		want.Name = "b"
		if allowed, _, err := access.Authorize(t.Context(), ann, want); err == nil || allowed {
			t.Errorf("with the API server down: %v, %v", allowed, err)
		}
	})

	It("the front proxy names the caller", func() {
		t := GinkgoTB()
		trusted := newAuthority(t)
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
		if err != nil {
			t.Fatal(err)
		}
		go proxy.Run(t.Context())

		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, ok, err := proxy.AuthenticateRequest(r)
			if err != nil || !ok {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("User", who.User.GetName())
			w.Header().Set("Groups", who.User.GetGroups()[0])
		}))
		server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
		server.StartTLS()
		defer server.Close()

		ask := func(certificates ...tls.Certificate) *http.Response {
			t.Helper()
			transport := server.Client().Transport.(*http.Transport).Clone()
			transport.TLSClientConfig.Certificates = certificates
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Remote-User", "ann")
			r.Header.Set("X-Remote-Group", "g")
			response, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			return response
		}
		Eventually(func() int {
			return ask(clientOf(t, trusted, "front-proxy-client")).StatusCode
		}).WithTimeout(20*time.Second).Should(Equal(http.StatusOK), "the front proxy should be accepted")
		response := ask(clientOf(t, trusted, "front-proxy-client"))
		if response.Header.Get("User") != "ann" || response.Header.Get("Groups") != "g" {
			t.Errorf("identified %v", response.Header)
		}
		refused := map[string][]tls.Certificate{
			"no certificate": nil,
			"another name":   {clientOf(t, trusted, "somebody")},
			"another CA":     {clientOf(t, newAuthority(t), "front-proxy-client")},
		}
		for name, certificates := range refused {
			if response := ask(certificates...); response.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s: code %d", name, response.StatusCode)
			}
		}
	})
})

func newAuthority(t testing.TB) *testca.Authority {
	t.Helper()
	authority, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func clientOf(t testing.TB, authority *testca.Authority, name string) tls.Certificate {
	t.Helper()
	pair, err := authority.Pair(name)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
