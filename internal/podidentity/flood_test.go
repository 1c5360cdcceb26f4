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

// bound returns a token with these Kubernetes claims.
func (i issuer) bound(audience, id string, to map[string]any) string {
	return i.signed(jwt.Claims{ID: id, Audience: jwt.Audience{audience}}, to)
}

// subject returns a token of an account.
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

// countingServer is an API server that accepts tokens of its issuer as the pod fix-1's, and
// counts requests.
type countingServer struct {
	issuer issuer
	// hidden is set when the keys cannot be read.
	hidden bool
	mu     sync.Mutex
	real   map[string]bool
	// readers are accepted as well, but are not bound to a pod.
	readers map[string]bool
	// reviews counts TokenReviews, keyReads reads of the keys, and accessReviews
	// SubjectAccessReviews.
	reviews       atomic.Int64
	keyReads      atomic.Int64
	accessReviews atomic.Int64
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
		s.keyReads.Add(1)
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
		s.accessReviews.Add(1)
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

// flood verifies 3,000 tokens at once until the test ends. It returns when all calls have
// begun.
func flood(t *testing.T, verifier *podidentity.Verifier, token func(int) string) {
	t.Helper()
	const strangers = 3000
	var running sync.WaitGroup
	var started sync.WaitGroup
	t.Cleanup(running.Wait)
	started.Add(strangers)
	for i := range strangers {
		text := token(i)
		running.Go(func() {
			started.Done()
			_, _ = verifier.Verify(t.Context(), text)
		})
	}
	started.Wait()
}

func TestStrangersDelayNoDaemon(t *testing.T) {
	for name, forge := range map[string]func(int) string{
		"texts that are not tokens": func(i int) string { return fmt.Sprintf("garbage.%d.token", i) },
		"well-formed tokens that somebody else signed": func() func(int) string {
			other := newIssuer()
			return func(i int) string { return other.token("team", "clew.dev", fmt.Sprint(i)) }
		}(),
		"tokens signed with an unknown key": func() func(int) string {
			other := newIssuer()
			other.id = "key-2"
			return func(i int) string { return other.token("team", "clew.dev", fmt.Sprint(i)) }
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			server, client := newCountingServer(t)
			verifier := podidentity.New(client, lasting{}, podidentity.Options{})
			flood(t, verifier, forge)
			_, err := verifier.Verify(t.Context(), server.mint("team", "real"))
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(server.reviews.Load()).To(gomega.BeEquivalentTo(1), "only the daemon's token reaches the API server")
			g.Expect(server.keyReads.Load()).To(gomega.BeNumerically("<=", 2))
		})
	}
}

// A tenant may request any number of real tokens from the API server.
func TestTokensOfOneNamespaceDelayNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	verifier := podidentity.New(client, lasting{}, podidentity.Options{})
	flood(t, verifier, func(i int) string { return server.issuer.token("hostile", "clew.dev", fmt.Sprint(i)) })
	_, err := verifier.Verify(t.Context(), server.mint("team", "real"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(server.reviews.Load()).To(gomega.BeNumerically("<", 300))
}

// The caller chooses the namespace: one accepted token can cause any number of access
// reviews.
func TestAReaderOfManyNamespacesDelaysNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	reader := server.issuer.token("hostile", "clew.dev", "reader")
	server.readers = map[string]bool{reader: true}
	verifier := podidentity.New(client, lasting{}, podidentity.Options{})
	_, err := verifier.VerifyReader(t.Context(), reader, "hostile")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	var running, started sync.WaitGroup
	t.Cleanup(running.Wait)
	const questions = 1000
	started.Add(questions)
	for i := range questions {
		running.Go(func() {
			started.Done()
			for n := 0; t.Context().Err() == nil && n < 3; n++ {
				_, _ = verifier.VerifyReader(t.Context(), reader, fmt.Sprintf("made-up-%d-%d", i, n))
			}
		})
	}
	started.Wait()
	_, err = verifier.Verify(t.Context(), server.mint("team", "real"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(server.accessReviews.Load()).To(gomega.BeNumerically("<", 100), "access reviews that reached the API server")
	g.Expect(server.reviews.Load()).To(gomega.BeNumerically("<", 5), "the reader's token is reviewed once")
}

// The token names its account and is signed, so a local check suffices.
func TestATokenOfSomebodyElseIsNotReviewedForTheServersAccount(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	verifier := podidentity.New(client, lasting{}, podidentity.Options{})
	token := server.issuer.subject("system:serviceaccount:hostile:default", "hostile")
	for range 10 {
		g.Expect(verifier.VerifyServiceAccount(t.Context(), token, "clew-system", "server")).To(gomega.MatchError(podidentity.ErrForbidden))
	}
	g.Expect(server.reviews.Load()).To(gomega.BeZero())
}

// Without the keys, strangers cannot be distinguished from new pods; but tokens that were
// accepted before are known.
func TestWithoutKeysKnownTokensWaitForNobody(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	server.hidden = true
	clock := clocktesting.NewFakePassiveClock(time.Now())
	verifier := podidentity.New(client, lasting{}, podidentity.Options{Clock: clock})
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

func TestANewKeyOfTheAPIServerIsRead(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	verifier := podidentity.New(client, lasting{}, podidentity.Options{Clock: clock})
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
	g.Expect(server.keyReads.Load()).To(gomega.BeEquivalentTo(2))
}

// An expired token still needs a read of the pod it is bound to: see
// TestATokenWhosePodIsGoneIsDistinguished.
func TestAnExpiredTokenIsNotReviewed(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	server.issuer.expiry = -time.Hour
	_, err := podidentity.New(client, lasting{}, podidentity.Options{}).Verify(t.Context(), server.mint("team", "old"))
	g.Expect(err).To(gomega.MatchError(podidentity.ErrUnauthenticated))
	g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("has expired")))
	g.Expect(server.reviews.Load()).To(gomega.BeZero())
}

func TestEachOfSeveralAudiencesIsAccepted(t *testing.T) {
	g := gomega.NewWithT(t)
	server, client := newCountingServer(t)
	for audiences, accepted := range map[string]bool{"server.clew.dev,clew.dev": true, "server.clew.dev": false} {
		verifier := podidentity.New(client, lasting{}, podidentity.Options{Audiences: strings.Split(audiences, ",")})
		_, err := verifier.Verify(t.Context(), server.mint("team", "real"))
		if accepted {
			g.Expect(err).NotTo(gomega.HaveOccurred())
			continue
		}
		g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(`audience "server.clew.dev"`)))
	}
}
