package podidentity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clew-dev/clew/internal/podidentity"
)

// issuer signs tokens as an API server does.
type issuer struct {
	key    *ecdsa.PrivateKey
	id     string
	expiry time.Duration
}

func newIssuer() issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return issuer{key: key, id: "key-1", expiry: time.Hour}
}

func (i issuer) token(namespace, audience, id string) string {
	return i.bound(audience, id, map[string]any{"namespace": namespace})
}

// bound is a token that says this of where it belongs.
func (i issuer) bound(audience, id string, to map[string]any) string {
	return i.signed(jwt.Claims{ID: id, Audience: jwt.Audience{audience}}, to)
}

// subject is a token of an account.
func (i issuer) subject(account, namespace string) string {
	return i.signed(jwt.Claims{Subject: account, Audience: jwt.Audience{"clew.dev"}}, map[string]any{"namespace": namespace})
}

func (i issuer) signed(claims jwt.Claims, to map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.id}}, nil)
	if err != nil {
		panic(err)
	}
	claims.Expiry, claims.Issuer = jwt.NewNumericDate(time.Now().Add(i.expiry)), "https://kubernetes.default.svc"
	text, err := jwt.Signed(signer).Claims(claims).Claims(map[string]any{"kubernetes.io": to}).Serialize()
	if err != nil {
		panic(err)
	}
	return text
}

// countingServer is an API server that accepts the tokens of its issuer, all of
// the pod fix-1, and counts what it is asked.
type countingServer struct {
	issuer issuer
	// hidden is set when the keys cannot be read.
	hidden bool
	mu     sync.Mutex
	real   map[string]bool
	// readers are accepted as well, and bound to no pod.
	readers map[string]bool
	reviews atomic.Int64
	looks   atomic.Int64
	rights  atomic.Int64
}

// mint returns a token that the server accepts.
func (s *countingServer) mint(namespace, id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := s.issuer.token(namespace, "clew.dev", id)
	s.real[token] = true
	return token
}

func (s *countingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/jwks"):
		s.looks.Add(1)
		if s.hidden {
			http.Error(w, "{}", http.StatusForbidden)
			return
		}
		s.mu.Lock()
		answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.issuer.key.Public(), KeyID: s.issuer.id}}}
		s.mu.Unlock()
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		s.reviews.Add(1)
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		s.mu.Lock()
		if s.real[review.Spec.Token] {
			review.Status = podToken()
		}
		if s.readers[review.Spec.Token] {
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: []string{"clew.dev"}, User: authenticationv1.UserInfo{Username: "system:serviceaccount:hostile:default"},
			}
		}
		s.mu.Unlock()
		answer = review
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		s.rights.Add(1)
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status.Allowed = review.Spec.ResourceAttributes.Namespace == "hostile"
		answer = review
	default:
		pod := taskPod()
		pod.APIVersion, pod.Kind = "v1", "Pod"
		answer = pod
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func newCountingServer(t *testing.T) (*countingServer, kubernetes.Interface) {
	t.Helper()
	server := &countingServer{issuer: newIssuer(), real: map[string]bool{}}
	api := httptest.NewServer(server)
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: 50, Burst: 100, ContentConfig: rest.ContentConfig{
		ContentType: "application/json", AcceptContentTypes: "application/json",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// flood has 3,000 tokens looked at until the test ends, and returns when all
// of them are on their way.
func flood(t *testing.T, verifier *podidentity.Verifier, token func(int) string) {
	t.Helper()
	const strangers = 3000
	var under sync.WaitGroup
	var started sync.WaitGroup
	t.Cleanup(under.Wait)
	started.Add(strangers)
	for i := range strangers {
		text := token(i)
		under.Go(func() {
			started.Done()
			_, _ = verifier.Verify(t.Context(), text)
		})
	}
	started.Wait()
}

func TestStrangersKeepNoDaemonOut(t *testing.T) {
	for name, forge := range map[string]func(int) string{
		"texts that are no tokens": func(i int) string { return fmt.Sprintf("garbage.%d.token", i) },
		"tokens that are well-formed, and signed by somebody else": func() func(int) string {
			other := newIssuer()
			return func(i int) string { return other.token("team", "clew.dev", fmt.Sprint(i)) }
		}(),
		"tokens of a key that nobody knows": func() func(int) string {
			other := newIssuer()
			other.id = "key-2"
			return func(i int) string { return other.token("team", "clew.dev", fmt.Sprint(i)) }
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			server, client := newCountingServer(t)
			verifier := podidentity.New(client, podidentity.Options{})
			flood(t, verifier, forge)
			_, err := verifier.Verify(t.Context(), server.mint("team", "real"))
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(server.reviews.Load()).To(gomega.BeEquivalentTo(1), "strangers' tokens got as far as the API server")
			g.Expect(server.looks.Load()).To(gomega.BeNumerically("<=", 2))
		})
	}
}

// A tenant may ask the API server for as many real tokens as they like.
func TestTokensOfOneNamespaceDelayNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	verifier := podidentity.New(client, podidentity.Options{})
	flood(t, verifier, func(i int) string { return server.issuer.token("hostile", "clew.dev", fmt.Sprint(i)) })
	_, err := verifier.Verify(t.Context(), server.mint("team", "real"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(server.reviews.Load()).To(gomega.BeNumerically("<", 300))
}

// A namespace is what a caller says that it is: one accepted token makes as many
// questions as there are names.
func TestOneReaderAsksAboutManyNamespacesAndDelaysNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	reader := server.issuer.token("hostile", "clew.dev", "reader")
	server.readers = map[string]bool{reader: true}
	verifier := podidentity.New(client, podidentity.Options{})
	_, err := verifier.VerifyReader(t.Context(), reader, "hostile")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	var under, started sync.WaitGroup
	t.Cleanup(under.Wait)
	const questions = 1000
	started.Add(questions)
	for i := range questions {
		under.Go(func() {
			started.Done()
			for n := 0; t.Context().Err() == nil && n < 3; n++ {
				_, _ = verifier.VerifyReader(t.Context(), reader, fmt.Sprintf("made-up-%d-%d", i, n))
			}
		})
	}
	started.Wait()
	_, err = verifier.Verify(t.Context(), server.mint("team", "real"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(server.rights.Load()).To(gomega.BeNumerically("<", 100), "questions about rights got as far as the API server")
	g.Expect(server.reviews.Load()).To(gomega.BeNumerically("<", 5), "whose token it is was asked once")
}

// The server's own account is named in the token, which is signed.
func TestATokenOfSomebodyElseIsNotReviewedForTheServersAccount(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	verifier := podidentity.New(client, podidentity.Options{})
	token := server.issuer.subject("system:serviceaccount:hostile:default", "hostile")
	for range 10 {
		g.Expect(verifier.VerifyServiceAccount(t.Context(), token, "clew-system", "server")).To(gomega.MatchError(podidentity.ErrForbidden))
	}
	g.Expect(server.reviews.Load()).To(gomega.BeZero())
}

// Without the keys, nobody can tell strangers from new pods; but those that
// were accepted before are known.
func TestWithoutKeysKnownTokensWaitForNobody(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	server.hidden = true
	clock := clocktesting.NewFakePassiveClock(time.Now())
	verifier := podidentity.New(client, podidentity.Options{Clock: clock})
	real := server.mint("team", "real")
	_, err := verifier.Verify(t.Context(), real)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	clock.SetTime(clock.Now().Add(time.Minute))
	other := newIssuer()
	flood(t, verifier, func(i int) string { return other.token("team", "clew.dev", fmt.Sprint(i)) })
	_, err = verifier.Verify(t.Context(), real)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(server.reviews.Load()).To(gomega.BeNumerically("<", 300))
}

func TestANewKeyOfTheAPIServerIsLookedUp(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	verifier := podidentity.New(client, podidentity.Options{Clock: clock})
	_, err := verifier.Verify(t.Context(), server.mint("team", "first"))
	g.Expect(err).NotTo(gomega.HaveOccurred())

	server.mu.Lock()
	server.issuer = newIssuer()
	server.issuer.id = "key-2"
	server.mu.Unlock()
	second := server.mint("team", "second")
	_, err = verifier.Verify(t.Context(), second)
	g.Expect(err).To(gomega.MatchError(podidentity.ErrUnauthenticated))
	clock.SetTime(clock.Now().Add(11 * time.Second))
	_, err = verifier.Verify(t.Context(), second)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(server.looks.Load()).To(gomega.BeEquivalentTo(2))
}

// Whether the pod that it is bound to still exists is a question: see
// TestATokenWhosePodIsGoneIsToldFromOneThatIsRefused.
func TestAnExpiredTokenIsNotReviewed(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	server.issuer.expiry = -time.Hour
	_, err := podidentity.New(client, podidentity.Options{}).Verify(t.Context(), server.mint("team", "old"))
	g.Expect(err).To(gomega.MatchError(podidentity.ErrUnauthenticated))
	g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("has expired")))
	g.Expect(server.reviews.Load()).To(gomega.BeZero())
}

func TestEachOfSeveralAudiencesIsAccepted(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	for audiences, accepted := range map[string]bool{"server.clew.dev,clew.dev": true, "server.clew.dev": false} {
		verifier := podidentity.New(client, podidentity.Options{Audiences: strings.Split(audiences, ",")})
		_, err := verifier.Verify(t.Context(), server.mint("team", "real"))
		if accepted {
			g.Expect(err).NotTo(gomega.HaveOccurred())
			continue
		}
		g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(`audience "server.clew.dev"`)))
	}
}
