-- name: owner
SELECT journal, server FROM lake;
-- name: claim
UPDATE lake SET journal = :journal, server = :server;
-- name: set_moved
UPDATE lake SET moved_ms = :moved_ms;
-- name: abandon
INSERT INTO transactions (name, is_abandoned) VALUES (:name, true) ON CONFLICT DO NOTHING;
-- name: is_abandoned
SELECT is_abandoned FROM transactions WHERE name = :name;
-- name: forget_transactions
DELETE FROM transactions WHERE at < now() - interval '1 day';
-- name: empty
TRUNCATE namespaces, pointers, publishes, answers;
-- name: has_left
SELECT moved_ms > 0 FROM lake;
-- name: take_time
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true);
